from sera_jax.worlds.epochs import in_epochs


def test_every_epoch_holds_all_once_in_an_order_of_its_own():
    got = in_epochs("abcdef", seed=3, start=0, count=18)
    epochs = [got[start : start + 6] for start in (0, 6, 12)]
    assert all(sorted(epoch) == list("abcdef") for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert got != in_epochs("abcdef", seed=4, start=0, count=18)


def test_any_part_is_found_without_the_parts_before():
    whole = in_epochs("abcdef", seed=3, start=0, count=18)
    assert in_epochs("abcdef", seed=3, start=5, count=8) == whole[5:13]
