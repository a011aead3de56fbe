"""Programs that attack the sandbox, by what they go for."""
