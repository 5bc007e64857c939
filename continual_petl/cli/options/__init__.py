"""What each command takes: its help, its options and examples. Nothing heavy is imported here."""
