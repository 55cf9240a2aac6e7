"""From the store to what ships: tables, databases, packages."""
