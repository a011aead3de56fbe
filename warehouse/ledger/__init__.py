"""What a run is: its log of transitions, and the state that follows from it; imports store."""
