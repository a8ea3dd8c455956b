"""Common mistakes in the exercise, each as the textbook with one decision changed."""
