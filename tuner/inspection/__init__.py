"""What a compiler makes of a config: its intermediate forms, what a binary takes of a device, how two differ."""
