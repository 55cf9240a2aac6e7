"""Which config a problem gets: tables, the order of sources, the rules, misses."""
