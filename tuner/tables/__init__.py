"""What ships is made here from the database: tables, packages, and the formats of other tools."""
