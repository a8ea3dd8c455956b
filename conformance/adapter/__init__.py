"""What a trainer under test sees: its declaration, the task with its data, and how its file is loaded."""
