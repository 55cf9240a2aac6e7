"""What a serving process imports: tables, their sources, the lookup."""
