"""With a model of meaning: what it adds, what it costs, and what happens without it."""

from tests.storage.memory.samples import Place, SubjectEmbedder, contents, entries, numbered, opened, text

TEXTS = ["my cat sleeps", "a new engine for the vehicle", "flour for the oven", "cat"]


async def test_texts_are_found_without_a_word_in_common(vector_place: Place) -> None:
    """A text of the same meaning is found in both scopes though no word is shared; other texts are not."""
    async with opened(vector_place, SubjectEmbedder(base=0)) as memory:
        await memory.index(entries(TEXTS))
        for session_id in (None, "a"):
            assert contents(await memory.search("car", session_id=session_id)) == [TEXTS[1]]


async def test_words_and_meaning_count_together(vector_place: Place) -> None:
    """Of texts that mean the same the one with the query's word comes first, and the query's own text has score 1."""
    async with opened(vector_place, SubjectEmbedder(base=0)) as memory:
        await memory.index(entries(["a kitten and a pet", "a kitten and a dog", "bread"]))
        hits = await memory.search("dog")
        assert contents(hits) == ["a kitten and a dog", "a kitten and a pet"]
        assert (await memory.search("a kitten and a dog"))[0].score > 0.999


async def test_a_model_for_which_all_texts_are_alike(vector_place: Place) -> None:
    """If every cosine is high the common part does not count: what is unrelated as most texts are is no hit."""
    async with opened(vector_place, SubjectEmbedder(base=5.0)) as memory:
        await memory.index(entries([*TEXTS, *["bread and flour"] * 20]))
        found = contents(await memory.search("car", limit=20))
        assert found[0] == TEXTS[1]
        assert "bread and flour" not in found


async def test_a_search_without_the_model_goes_by_words(vector_place: Place) -> None:
    """While the embedder fails, a search answers by words alone, and the memory says so."""
    model = SubjectEmbedder()
    async with opened(vector_place, model) as memory:
        await memory.index(entries(TEXTS))
        assert memory.weighs == "words_and_vectors"
        model.fails = True
        assert contents(await memory.search("sleeps")) == [TEXTS[0]]
        assert await memory.search("car") == []
        assert (memory.weighs, (await memory.stats()).weighs) == ("words", "words")
        model.fails = False
        assert contents(await memory.search("car"))[0] == TEXTS[1]
        assert memory.weighs == "words_and_vectors"


async def test_vectors_are_made_once(vector_place: Place) -> None:
    """Neither indexing again, nor another embedder for a while, nor a rebuild asks the model again for a text."""
    model = SubjectEmbedder()
    async with opened(vector_place, model) as memory:
        await memory.index(entries(TEXTS))
        await memory.index(entries(TEXTS))
        assert model.asked == TEXTS
    async with opened(vector_place) as memory:
        await memory.catch_up()
        await memory.index(numbered(2, session="b"))
    async with opened(vector_place, model) as memory:
        await memory.catch_up()
        await memory.rebuild()
    assert model.asked == [*TEXTS, text(0), text(1)]


async def test_entries_without_a_vector_are_weighed_by_words(vector_place: Place) -> None:
    """Until another embedder's vectors are made, an entry answers by its words; one stored since answers by meaning."""
    async with opened(vector_place) as memory:
        await memory.index(numbered(30))
    async with opened(vector_place, SubjectEmbedder()) as memory:
        assert memory.is_behind
        await memory.index(entries(["an engine"], first=30))
        assert contents(await memory.search("car")) == ["an engine"]
        assert contents(await memory.search(text(3)))[0] == text(3)
        await memory.catch_up()
        assert (await memory.stats()).behind == 0
        assert contents(await memory.search("car"))[0] == "an engine"


async def test_a_vector_of_nothing_is_like_nothing(vector_place: Place) -> None:
    """A text whose vector is all zeros is stored and found by its words, and near nothing."""
    async with opened(vector_place, SubjectEmbedder(base=0)) as memory:
        await memory.index(entries(["something else", "a cat"]))
        stats = await memory.stats()
        assert (stats.entries, stats.indexed, stats.behind) == (2, 2, 0)
        assert contents(await memory.search("something")) == ["something else"]
        assert contents(await memory.search("kitten")) == ["a cat"]
