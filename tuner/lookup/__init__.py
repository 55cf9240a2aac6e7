"""Which config a problem gets: tables, the order of sources, the match rules, misses."""
