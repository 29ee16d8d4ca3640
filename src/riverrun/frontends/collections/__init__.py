"""The collections front end: relational methods on changing rows: select, group, join, iterate."""
