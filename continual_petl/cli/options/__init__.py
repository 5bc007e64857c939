"""Help, options and examples of each command. Nothing heavy is imported here."""
