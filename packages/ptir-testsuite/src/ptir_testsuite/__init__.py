"""ptir-testsuite: says with evidence whether a backend is right."""
