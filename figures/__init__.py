"""What people look at. Never imports torch or runners."""
