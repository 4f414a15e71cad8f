"""What no anchor makes: element by element."""
