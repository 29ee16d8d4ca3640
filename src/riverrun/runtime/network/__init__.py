"""The network between the processes of a run: connections, admission, streams of messages, questions and lent rows."""
