"""What processes of a run say to each other: connections, who gets in, streams of messages, questions and lent rows."""
