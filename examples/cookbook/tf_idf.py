"""TF-IDF: how much a word tells about a document, while documents come, change and go."""

import re

import polars as pl

import riverrun as rr


def words_of(document):
    """The words of a document, a row for each time that one occurs."""
    return [(document["id"], word) for word in re.findall(r"\w+", document["text"].lower())]


def program():
    flow = rr.Dataflow("documents")
    documents = flow.input("documents", {"id": pl.Int64, "text": pl.String}, key="id")
    words = documents.flat_map(words_of, {"id": pl.Int64, "word": pl.String})
    occurrences = words.group_by("id", "word").count("occurs")
    lengths = words.group_by("id").count("length")
    spread = occurrences.group_by("word").count("documents")
    weights = spread.join(lengths.count("all"), how="cross").select(
        "word", idf=(pl.col("all") / pl.col("documents")).log()
    )
    score = (pl.col("occurs") / pl.col("length") * pl.col("idf")).round(9)
    scores = (
        occurrences.join(lengths, on="id")
        .join(weights, on="word")
        .select("id", "word", score=score)
    )
    flow.output("scores", scores)
    flow.output("keywords", scores.filter(pl.col("score") > 0).group_by("id").top(2, by="score"))
    return flow


def main():
    with program().run() as run:
        run.upsert("documents", [(1, "The sea, the sea"), (2, "The old man and the sea")])
        run.upsert("documents", [(3, "An old house")])
        run.commit()
        print([(id, word) for id, word, _ in run.read("keywords").rows()])
        run.upsert("documents", [(1, "The sky")])
        run.commit()
        print([(id, word) for id, word, _ in run.read("keywords").rows()])


if __name__ == "__main__":
    main()
