"""What the programs of the cookbook should give, worked out in plain Python from all rows that are there.

A `Case` says how rows of each input are drawn, and what the outputs are, given the rows of every input (of one with a
key: one row for each key) and the epochs so far. Nothing here uses riverrun, and nothing here is incremental.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from difflib import SequenceMatcher
from random import Random
from typing import Any

import polars as pl

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """How a program of the cookbook is played, and what its outputs should be."""

    draw: dict[str, Callable[[Random, int], tuple[Any, ...]]]  # input -> a row, of an epoch
    expected: Callable[..., dict[str, Rows]]  # of the inputs by name
    keys: dict[str, int] = field(default_factory=dict)  # input -> the length of its key
    epochs: bool = False  # `expected` is given `epochs` too: the rows that each epoch brought
    stays: frozenset[str] = frozenset()  # inputs of which no row is deleted


def grouped(rows: Rows, *columns: int) -> dict[tuple[Any, ...], Rows]:
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def rounded(value: float, decimals: int) -> float:
    """As Polars rounds: halves away from zero."""
    return pl.Series([value]).round(decimals)[0]


# --- sessions -----------------------------------------------------------------------------------

NOON = datetime(2026, 3, 2, 12)


def sessions(clicks: Rows) -> dict[str, Rows]:
    result: Rows = []
    for (user,), rows in grouped(clicks, 0).items():
        session: list[datetime] = []
        for at in sorted(at for _, at in rows):
            if session and at - session[-1] > timedelta(minutes=30):
                result.append((user, session[0], session[-1], len(session)))
                session = []
            session.append(at)
        result.append((user, session[0], session[-1], len(session)))
    users = [
        (
            user,
            len(rows),
            max(int((end - start).total_seconds()) // 60 for _, start, end, _ in rows),
        )
        for (user,), rows in grouped(result, 0).items()
    ]
    return {"sessions": result, "users": users}


# --- history ------------------------------------------------------------------------------------


def history(reports: Rows, orders: Rows) -> dict[str, Rows]:
    city_on: dict[int, list[tuple[date, str]]] = defaultdict(list)
    for customer, since, city in sorted(reports):
        if not city_on[customer] or city_on[customer][-1][1] != city:
            city_on[customer].append((since, city))
    versions = []
    for customer, changes in city_on.items():
        ends = [since for since, _ in changes[1:]] + [None]
        versions += [
            (customer, city, since, end) for (since, city), end in zip(changes, ends, strict=True)
        ]
    sales: Counter[str] = Counter()
    for _, customer, day, total in orders:
        known = [city for since, city in city_on[customer] if since <= day]
        if known:
            sales[known[-1]] += total
    return {
        "history": versions,
        "current": [(customer, changes[-1][1]) for customer, changes in city_on.items() if changes],
        "sales": list(sales.items()),
    }


# --- funnel -------------------------------------------------------------------------------------


def funnel(events: Rows) -> dict[str, Rows]:
    counts: Counter[str] = Counter()
    for rows in grouped(events, 0).values():
        minutes = {
            step: [at for _, name, at in rows if name == step] for step in ("view", "cart", "buy")
        }
        if not minutes["view"]:
            continue
        begin = at = min(minutes["view"])
        counts["view"] += 1
        for step in ("cart", "buy"):
            later = [minute for minute in minutes[step] if at <= minute <= begin + 1440]
            if not later:
                break
            at = min(later)
            counts[step] += 1
    shares = [(step, rounded(users / counts["view"], 3)) for step, users in counts.items()]
    return {"funnel": list(counts.items()), "shares": shares}


# --- bill of materials --------------------------------------------------------------------------


def bill_of_materials(uses: Rows, prices: Rows) -> dict[str, Rows]:
    parts = defaultdict(list)
    for assembly, part, quantity in uses:
        parts[assembly].append((part, quantity))

    def explode(assembly: str, times: int, needs: Counter[str]) -> Counter[str]:
        for part, quantity in parts.get(assembly, ()):
            needs[part] += times * quantity
            explode(part, times * quantity, needs)
        return needs

    needs = [
        (assembly, part, quantity)
        for assembly in list(parts)
        for part, quantity in explode(assembly, 1, Counter()).items()
    ]
    price = dict(prices)
    costs: Counter[str] = Counter()
    for assembly, part, quantity in needs:
        if part in price:
            costs[assembly] += quantity * price[part]
    return {"needs": needs, "costs": list(costs.items())}


def one_use(random: Random, _: int) -> tuple[Any, ...]:
    assembly, part = sorted(random.sample("abcdefg", 2))  # a part comes later in the alphabet
    return assembly, part, random.randint(1, 3)


# --- deduplication ------------------------------------------------------------------------------


def deduplication(records: Rows) -> dict[str, Rows]:
    latest = []
    for rows in grouped(records, 0).values():
        newest = max(written for _, written, _, _ in rows)
        source = min(source for _, written, source, _ in rows if written == newest)
        latest.append(max(row for row in rows if row[1:3] == (newest, source)))
    totals: Counter[str] = Counter()
    for _, _, source, amount in latest:
        totals[source] += amount
    copies = Counter(row[0] for row in records)
    return {
        "latest": latest,
        "totals": [(source, totals[source]) for source in {row[2] for row in latest}],
        "repeated": [(record, count) for record, count in copies.items() if count > 1],
    }


def one_record(random: Random, _: int) -> tuple[Any, ...]:
    record, written, source = (
        random.randint(1, 5),
        random.randint(1, 6),
        random.choice(["shop", "web"]),
    )
    return record, written, source, 100 * record + 10 * written + len(source)


# --- sliding windows ----------------------------------------------------------------------------


def sliding_windows(requests: Rows, epochs: list[dict[str, Rows]]) -> dict[str, Rows]:
    ever = [at for epoch in epochs for _, at, _ in epoch["requests"]]
    newest = max(ever, default=NOON)
    windows: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    for host, at, status in requests:
        if at + timedelta(hours=1, seconds=30) <= newest:
            continue
        start = datetime(1970, 1, 1) + (at - datetime(1970, 1, 1)) // timedelta(
            seconds=20
        ) * timedelta(seconds=20)
        for back in range(3):
            windows[host, start - back * timedelta(seconds=20)].append(status)
    rows = [(*key, len(of), sum(status >= 500 for status in of)) for key, of in windows.items()]
    return {"windows": rows, "alarms": [row for row in rows if 2 * row[3] > row[2]]}


def one_request(random: Random, epoch: int) -> tuple[Any, ...]:
    # On the edges of windows and of what is kept, too: 3,630 seconds.
    second = 10 * (90 * epoch + random.randint(0, 90)) - random.choice([0, 0, 0, 3000, 3630, 4000])
    return random.choice("ab"), NOON + timedelta(seconds=second), random.choice([200, 500])


# --- TF-IDF -------------------------------------------------------------------------------------


def tf_idf(documents: Rows) -> dict[str, Rows]:
    words = {name: re.findall(r"\w+", text.lower()) for name, text in documents}
    words = {name: of for name, of in words.items() if of}
    spread = Counter(word for of in words.values() for word in set(of))
    scores = [
        (name, word, round(times / len(of) * math.log(len(words) / spread[word]), 9))
        for name, of in words.items()
        for word, times in Counter(of).items()
    ]
    keywords = []
    for rows in grouped([row for row in scores if row[2] > 0], 0).values():
        keywords += sorted(rows, key=lambda row: (-row[2], row[1]))[:2]
    return {"scores": scores, "keywords": keywords}


def one_document(random: Random, _: int) -> tuple[Any, ...]:
    words = random.choices(["sea", "sky", "man", "old", "the"], k=random.randint(0, 6))
    return random.randint(1, 5), " ".join(words)


# --- as-of prices -------------------------------------------------------------------------------


def as_of_prices(prices: Rows, orders: Rows, epochs: list[dict[str, Rows]]) -> dict[str, Rows]:
    history: dict[tuple[str, int], int] = {}
    complete = None  # no price before it will come
    for epoch in epochs:
        in_time = [row for row in epoch["prices"] if complete is None or row[1] >= complete]
        for (item, time), rows in grouped(in_time, 0, 1).items():
            history[item, time] = max(price for _, _, price in rows)
        times = [time for _, time, _ in epoch["prices"]]
        if times:
            complete = max(max(times) - 5, complete if complete is not None else -math.inf)
    priced, revenue = [], defaultdict(list)
    for order, item, at, pieces in orders:
        if complete is None or at >= complete:
            continue
        times = [time for of, time in history if of == item and time <= at]
        price = history[item, max(times)] if times else None
        priced.append((order, item, at, pieces, price))
        revenue[item].append(pieces * price if price is not None else 0)
    return {
        "priced": priced,
        "revenue": [(item, sum(paid), len(paid)) for item, paid in revenue.items()],
    }


# --- fraud rings --------------------------------------------------------------------------------


def components(nodes: set[int], pairs: set[tuple[int, int]]) -> dict[int, int]:
    """The least node of each node's component."""
    near = defaultdict(set)
    for one, two in pairs:
        near[one].add(two)
        near[two].add(one)
    least: dict[int, int] = {}
    for node in sorted(nodes):
        reached, todo = {node}, [node]
        while todo:
            more = near[todo.pop()] - reached
            reached |= more
            todo += more
        least[node] = min(reached)
    return least


def fraud_rings(traits: Rows, payments: Rows) -> dict[str, Rows]:
    pairs = {(one[0], two[0]) for one in traits for two in traits if one[1:] == two[1:]}
    rings = components({account for account, _, _ in traits}, pairs)
    sizes = Counter(rings.values())
    spent: dict[int, int] = {}
    for account, amount in payments:
        if account in rings:
            spent[rings[account]] = spent.get(rings[account], 0) + amount
    suspicious = [(ring, size, spent.get(ring)) for ring, size in sizes.items() if size >= 3]
    return {"rings": list(rings.items()), "suspicious": suspicious}


# --- top with ties ------------------------------------------------------------------------------


def top_with_ties(sales: Rows) -> dict[str, Rows]:
    sold: Counter[tuple[str, str]] = Counter()
    for category, item, amount in sales:
        sold[category, item] += amount
    rows = [(category, item, sold[category, item]) for category, item in {row[:2] for row in sales}]
    best, places = [], []
    for of in grouped(rows, 0).values():
        for category, item, amount in of:
            ahead = sum(other > amount for _, _, other in of)
            if ahead < 3:
                best.append((category, item, amount))
                places.append((category, item, ahead + 1))
    return {"best": best, "places": places}


# --- inventory ----------------------------------------------------------------------------------


def inventory(movements: Rows) -> dict[str, Rows]:
    stock, negative, alarms = [], [], []
    for (item, place), rows in grouped(movements, 0, 1).items():
        stock.append((item, place, sum(quantity for *_, quantity in rows)))
        below = []
        for minute in sorted({minute for _, _, minute, _ in rows}):
            there = sum(quantity for _, _, at, quantity in rows if at <= minute)
            if there < 0:
                below.append((item, place, minute, there))
        negative += below
        if below:
            alarms.append((item, place, below[0][2], min(row[3] for row in below)))
    return {"stock": stock, "negative": negative, "alarms": alarms}


# --- permissions --------------------------------------------------------------------------------


def permissions(members: Rows, inherits: Rows, allows: Rows, denied: Rows) -> dict[str, Rows]:
    roles = set()
    for user, first in members:
        todo = [first]
        while todo:
            role = todo.pop()
            if (user, role) not in roles:
                roles.add((user, role))
                todo += [held for holder, held in inherits if holder == role]
    may = {(user, action) for user, role in roles for of, action in allows if of == role}
    return {"roles": list(roles), "may": list(may - set(denied))}


# --- change capture -----------------------------------------------------------------------------


def change_capture(log: Rows) -> dict[str, Rows]:
    rows = {}
    for _, op, key, name, city in sorted(log, key=lambda row: row[0]):
        rows[key] = None if op == "delete" else (key, name, city)
    customers = [row for row in rows.values() if row]
    return {"customers": customers, "cities": list(Counter(row[2] for row in customers).items())}


def one_change(random: Random, _: int) -> tuple[Any, ...]:
    position = random.randint(1, 40)
    of = Random(position)  # what the log has at a position never changes
    op = of.choice(["insert", "update", "update", "delete"])
    key = of.randint(1, 6)
    return (
        (position, op, key, None, None)
        if op == "delete"
        else (position, op, key, of.choice("AB"), of.choice("xyz"))
    )


# --- expectations -------------------------------------------------------------------------------


def expectations(orders: Rows, customers: Rows) -> dict[str, Rows]:
    known = {customer for (customer,) in customers}
    copies = Counter(row[0] for row in orders)
    violations = [(order, "order is unique") for order, count in copies.items() if count > 1]
    for order, customer, total, country in orders:
        if total is None or not total > 0:
            violations.append((order, "total is positive"))
        if country not in {"IE", "FR", "DE"}:
            violations.append((order, "country is known"))
        if customer is None or customer not in known:
            violations.append((order, "customer exists"))
    report = []
    for (rule,), rows in grouped(violations, 1).items():
        count = len({order for order, _ in rows})
        report.append((rule, count, len(orders), rounded(count / len(orders), 4)))
    return {"violations": violations, "report": report}


def one_order(random: Random, _: int) -> tuple[Any, ...]:
    total = random.choice([1.0, 2.5, 0.0, -1.0, None])
    country = random.choice(["IE", "FR", "DE", "XX", None])
    return random.randint(1, 12), random.choice([1, 2, 3, None]), total, country


# --- matching -----------------------------------------------------------------------------------


def matching(records: Rows) -> dict[str, Rows]:
    matches = []
    for one, two in itertools.combinations(sorted(records), 2):
        names = sorted([one[1].lower(), two[1].lower()])
        if one[2] == two[2] and SequenceMatcher(None, *names).ratio() >= 0.8:
            matches.append((one[0], two[0]))
    person = components({row[0] for row in records}, set(matches))
    people = []
    for (name,), rows in grouped([(person[row[0]], *row) for row in records], 0).items():
        latest = max(rows, key=lambda row: (row[4], row[1]))
        people.append((name, latest[2], len(rows)))
    return {"matches": matches, "people": people}


def one_person(random: Random, _: int) -> tuple[Any, ...]:
    name = random.choice(["Ann Byrne", "Anne Byrne", "Ann Burne", "Bob Daly", "Bob Daley"])
    return random.randint(1, 9), name, random.choice(["T12", "D01"]), random.randint(1, 5)


# --- also bought --------------------------------------------------------------------------------


def also_bought(lines: Rows) -> dict[str, Rows]:
    baskets = {basket: {item for _, item in rows} for (basket,), rows in grouped(lines, 0).items()}
    together = Counter(
        pair for items in baskets.values() for pair in itertools.permutations(items, 2)
    )
    popular = Counter(item for items in baskets.values() for item in items)
    recommended: Rows = []
    for (item,), rows in grouped(
        [(*pair, count) for pair, count in together.items() if count >= 2], 0
    ).items():
        ranked = sorted(
            (-round(count / popular[other], 6), -count, other) for _, other, count in rows
        )
        recommended += [(item, other, -lift) for lift, _, other in ranked[:2]]
    return {
        "together": [(*pair, count) for pair, count in together.items()],
        "recommended": recommended,
    }


# --- currency -----------------------------------------------------------------------------------


def currency(sales: Rows, rates: Rows) -> dict[str, Rows]:
    rate = {(day, name): euro for day, name, euro in rates}
    revenue: dict[tuple[str, date], Decimal] = {}
    missing = set()
    for day, country, name, amount in sales:
        if (day, name) not in rate:
            missing.add((day, name))
            continue
        euro = (amount * rate[day, name]).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
        month = country, day.replace(day=1)
        revenue[month] = revenue.get(month, Decimal(0)) + euro
    return {
        "revenue": [(*month, euro) for month, euro in revenue.items()],
        "missing": list(missing),
    }


def one_day(random: Random) -> date:
    return date(2026, 2, 26) + timedelta(days=random.randint(0, 5))


# --- anomalies ----------------------------------------------------------------------------------


def anomalies(readings: Rows) -> dict[str, Rows]:
    far = []
    for (sensor,), rows in grouped(readings, 0).items():
        values = defaultdict(list)
        for _, minute, value in rows:
            values[minute // 60].append(value)
        for hour, of in values.items():
            before = [values[h] for h in range(hour - 24, hour) if h in values]
            if len(before) < 3:
                continue
            everything = [value for reading in before for value in reading]
            mean, value = sum(everything) / len(everything), sum(of) / len(of)
            if value > 2 * mean or 2 * value < mean:
                far.append((sensor, hour, value, mean))
    return {"anomalies": far}


# --- experiment ---------------------------------------------------------------------------------


def experiment(seen: Rows, orders: Rows) -> dict[str, Rows]:
    variants = {
        user: {variant for _, variant in rows} for (user,), rows in grouped(seen, 0).items()
    }
    users = {user: next(iter(names)) for user, names in variants.items() if len(names) == 1}
    buyers = {user for user, _ in orders} & users.keys()
    conversion, revenue = [], []
    for variant in sorted(set(users.values())):
        size = sum(name == variant for name in users.values())
        bought = sum(users[user] == variant for user in buyers)
        conversion.append((variant, size, bought, rounded(bought / size, 4)))
        paid = [amount for user, amount in orders if users.get(user) == variant]
        if paid:
            revenue.append((variant, sum(paid), len(paid)))
    return {"conversion": conversion, "revenue": revenue}


# --- forget -------------------------------------------------------------------------------------


def forget(people: Rows, visits: Rows, orders: Rows, forget: Rows) -> dict[str, Rows]:
    gone = {person for (person,) in forget}
    pages = {
        page: {person for person, _ in rows} - gone for (page,), rows in grouped(visits, 1).items()
    }
    city = {person: name for person, name in people if person not in gone}
    paid = defaultdict(list)
    for person, amount in orders:
        if person in city:
            paid[city[person]].append(amount)
    tables = {"people": people, "visits": visits, "orders": orders}
    left = Counter(
        (row[0], name) for name, rows in tables.items() for row in rows if row[0] in gone
    )
    return {
        "pages": [(page, len(who)) for page, who in pages.items() if who],
        "cities": [(name, sum(amounts), max(amounts)) for name, amounts in paid.items()],
        "to_delete": [(*key, count) for key, count in left.items()],
    }


CASES = {
    "sessions": Case(
        {"clicks": lambda r, _: (r.choice("ab"), NOON + timedelta(minutes=r.randint(0, 400)))},
        sessions,
    ),
    "history": Case(
        {
            "reports": lambda r, _: (
                r.randint(1, 3),
                date(2026, 1, r.randint(1, 28)),
                r.choice("xyz"),
            ),
            "orders": lambda r, _: (
                r.randint(1, 99),
                r.randint(1, 4),
                date(2026, 1, r.randint(1, 28)),
                r.randint(1, 9),
            ),
        },
        history,
        {"reports": 2},
    ),
    "funnel": Case(
        {
            "events": lambda r, _: (
                r.randint(1, 5),
                r.choice(["view", "cart", "buy", "other"]),
                480 * r.randint(0, 5),  # equal minutes, and a day to the minute
            )
        },
        funnel,
    ),
    "bill_of_materials": Case(
        {"uses": one_use, "prices": lambda r, _: (r.choice("bcdefg"), r.randint(1, 9))},
        bill_of_materials,
        {"uses": 2, "prices": 1},
    ),
    "deduplication": Case({"records": one_record}, deduplication),
    "sliding_windows": Case(
        {"requests": one_request}, sliding_windows, epochs=True, stays=frozenset({"requests"})
    ),
    "tf_idf": Case({"documents": one_document}, tf_idf, {"documents": 1}),
    "as_of_prices": Case(
        {
            "prices": lambda r, epoch: (
                r.choice("ab"),
                10 * epoch + r.randint(0, 14),
                r.randint(1, 9),
            ),
            "orders": lambda r, epoch: (
                r.randint(1, 99),
                r.choice("abc"),
                10 * epoch + r.randint(-5, 14),
                r.randint(1, 3),
            ),
        },
        as_of_prices,
        epochs=True,
        stays=frozenset({"prices"}),
    ),
    "fraud_rings": Case(
        {
            "traits": lambda r, _: (
                r.randint(1, 9),
                r.choice(["card", "device"]),
                r.choice("pqrst"),
            ),
            "payments": lambda r, _: (r.randint(1, 10), r.randint(1, 50)),
        },
        fraud_rings,
    ),
    "top_with_ties": Case(
        {"sales": lambda r, _: (r.choice("xy"), r.choice("abcdefg"), r.randint(0, 3))},
        top_with_ties,
    ),
    "inventory": Case(
        {
            "movements": lambda r, _: (
                r.choice(["rope", "sail"]),
                r.choice("AB"),
                r.randint(0, 20),
                r.randint(-5, 6),
            )
        },
        inventory,
    ),
    "permissions": Case(
        {
            "members": lambda r, _: (r.choice("uvw"), r.choice("abcdef")),
            "inherits": lambda r, _: (r.choice("abcdef"), r.choice("abcdef")),  # cycles too
            "allows": lambda r, _: (r.choice("abcdef"), r.choice("123")),
            "denied": lambda r, _: (r.choice("uvw"), r.choice("123")),
        },
        permissions,
    ),
    "change_capture": Case({"log": one_change}, change_capture),
    "expectations": Case(
        {"orders": one_order, "customers": lambda r, _: (r.randint(1, 3),)},
        expectations,
        {"customers": 1},
    ),
    "matching": Case({"records": one_person}, matching, {"records": 1}),
    "also_bought": Case({"lines": lambda r, _: (r.randint(1, 6), r.choice("abcde"))}, also_bought),
    "currency": Case(
        {
            "sales": lambda r, _: (
                one_day(r),
                r.choice(["US", "UK"]),
                r.choice(["USD", "GBP"]),
                Decimal(r.randint(-500, 5000)) / 100,
            ),
            "rates": lambda r, _: (
                one_day(r),
                r.choice(["USD", "GBP"]),
                Decimal(r.randint(500000, 1500000)) / 1000000,
            ),
        },
        currency,
        {"rates": 2},
    ),
    "anomalies": Case(
        {"readings": lambda r, _: (r.choice("ab"), r.randint(0, 1200), r.choice([5, 8, 10, 40]))},
        anomalies,
    ),
    "experiment": Case(
        {
            "seen": lambda r, _: (r.randint(1, 12), r.choice("AAB")),
            "orders": lambda r, _: (r.randint(1, 14), r.randint(1, 50)),
        },
        experiment,
    ),
    "forget": Case(
        {
            "people": lambda r, _: (r.randint(1, 6), r.choice("xy")),
            "visits": lambda r, _: (r.randint(1, 7), r.choice("hi")),
            "orders": lambda r, _: (r.randint(1, 7), r.randint(1, 50)),
            "forget": lambda r, _: (r.randint(1, 7),),
        },
        forget,
        {"people": 1, "forget": 1},
    ),
}
