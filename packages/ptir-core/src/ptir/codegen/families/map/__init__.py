"""What no hero makes: element by element."""
