"""What operators do: pause, remove and redrive sessions, and change single items by their positions."""
