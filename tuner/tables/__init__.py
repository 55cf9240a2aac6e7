"""From the database to what ships: tables, packages, and the formats of other tools."""
