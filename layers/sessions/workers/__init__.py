"""What workers do: append items, lease a session, end its items, and read several ahead."""
