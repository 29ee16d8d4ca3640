"""Rounds: operators for loops in which each round is computed from scratch, and nothing is kept from round to round.

A differential loop keeps the changes of all rounds, so that a change of its input costs what differs by it. In a loop
*by rounds*, the rows at a time (epoch, round) are the whole content of that round. It costs the rows that there are in
each round, and no memory of earlier rounds. The front end builds such a loop beside the differential one
(`frontends.collections.rounds`); `Operator.in_round` gives the counterpart of an operator. Laws of such a loop:

- **Whole rounds.** At a time (e, i) the changes that a node gives add up to its content in round i, as of epoch e.
  Diffs below zero are allowed as in all collections.
- **Again as a whole.** The loop runs in the epochs in which one of its inputs changes, from the first round on. In all
  other epochs nothing runs.
- **All alike.** Every worker has a mark for each round (`again`), and all workers go on or all end: a vote of one
  worker comes to all, and a round is decided on when no vote of it can come any more.
- **One state.** The result is kept outside of the loop (`settle`), and its net change goes on. Nothing else is kept.

In their order: `beginning` has the marks by which a loop begins, and the rows that it takes from outside; `gather`,
`groups` and `joins` do the work of a round; `stops` votes for another round; `again` leads back, or out.
"""
