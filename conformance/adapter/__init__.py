"""What a trainer under test uses: its declaration, the task with its data, and how its file is loaded."""
