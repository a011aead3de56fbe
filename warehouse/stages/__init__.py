"""What a running stage needs: what is due, its share, room, time and the order to stop; imports store."""
