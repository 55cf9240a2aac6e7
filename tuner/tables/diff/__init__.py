"""In what two tables or databases differ."""
