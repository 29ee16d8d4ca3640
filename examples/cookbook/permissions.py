"""Permissions: what each user may do, by roles that hold other roles; and who loses what when a role goes."""

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("permissions")
    members = flow.input("members", {"user": pl.String, "role": pl.String})
    inherits = flow.input("inherits", {"role": pl.String, "held": pl.String})
    allows = flow.input("allows", {"role": pl.String, "action": pl.String})
    denied = flow.input("denied", {"user": pl.String, "action": pl.String})
    direct = members.distinct()

    def onward(roles):
        further = roles.join(inherits, on="role").select("user", role="held")
        return further.concat(direct).distinct()

    roles = direct.iterate(onward, name="roles")
    flow.output("roles", roles)
    may = roles.join(allows, on="role").select("user", "action").distinct()
    flow.output("may", may.anti_join(denied, on=["user", "action"]))
    return flow


def main():
    with program().run() as run:
        run.insert("members", [("ann", "admin"), ("bob", "staff")])
        run.insert("inherits", [("admin", "staff"), ("staff", "guest")])
        run.insert("allows", [("guest", "read"), ("staff", "write"), ("admin", "drop")])
        run.insert("denied", [("bob", "write")])
        run.commit()
        print(run.read("may").rows())
        run.delete("inherits", [("staff", "guest")])
        run.commit()
        print(run.changes("may").rows())


if __name__ == "__main__":
    main()
