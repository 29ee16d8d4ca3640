"""Plans as text and pictures."""

from riverrun.engine.plan import Plan


def explain(plan: Plan) -> str:
    """The plan as text."""
    return "\n".join(repr(node) for node in plan.nodes)


to_dot = to_svg = explain
