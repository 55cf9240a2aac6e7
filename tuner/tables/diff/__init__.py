"""How two tables or databases differ."""
