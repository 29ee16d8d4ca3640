"""Messages, questions, answers and errors as bytes, and back."""
