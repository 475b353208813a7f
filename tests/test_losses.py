"""Losses against numbers worked out by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sera_jax import losses

LOG2 = float(np.log(2.0))


def arrays(*rows):
    return [jnp.array([row], jnp.float32) for row in rows]


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "no jit"])
class TestCispo:
    def test_by_hand(self, wrap):
        # Ratios 2, 1/2, 1: loss -(2 * 1 * 3 * -1 + 0.5 * 2 * -1 * -2 + untrained) = 6 - 2.
        logprobs, behavior, advantages, weights, mask = arrays(
            [-1, -2, -3], [-1 - LOG2, -2 + LOG2, -3], [3, -1, 7], [1, 2, 1], [1, 1, 0]
        )
        loss, count, metrics = wrap(losses.cispo)(logprobs, behavior, advantages, weights, mask)
        np.testing.assert_allclose(loss, 6.0 - 2.0, rtol=1e-6)
        assert count == 2
        np.testing.assert_allclose(metrics["ratio"], 2.5, rtol=1e-6)
        np.testing.assert_allclose(metrics["logprob_gap"], 2 * LOG2, rtol=1e-6)
        assert metrics["logprob_gap_above_0.1"] == 2 and metrics["clip_fraction"] == 0

    def test_the_cap_is_an_absolute_five(self, wrap):
        logprobs, behavior, one = arrays([-1.0], [-3.0], [1.0])  # ratio e^2 = 7.4
        loss, _, metrics = wrap(losses.cispo)(logprobs, behavior, one, one, one > 0)
        np.testing.assert_allclose(loss, 5.0, rtol=1e-6)
        assert metrics["clip_fraction"] == 1

    def test_gradient_is_the_clipped_ratio_alone(self, wrap):
        """At log p = -3 a ratio that is differentiated would flip the sign: 1 + log p = -2."""
        logprobs, behavior, one = arrays([-3.0, -0.5], [-3.0, -2.5], [1.0, 1.0])
        gradient = jax.grad(lambda x: wrap(losses.cispo)(x, behavior, one, one, one)[0])(logprobs)
        np.testing.assert_allclose(gradient, [[-1.0, -5.0]], rtol=1e-6)

    def test_a_clipped_token_still_learns(self, wrap):
        logprobs, behavior, one = arrays([-1.0], [-9.0], [1.0])
        gradient = jax.grad(lambda x: wrap(losses.cispo)(x, behavior, one, one, one)[0])(logprobs)
        np.testing.assert_allclose(gradient, [[-5.0]])

    def test_whatever_padding_holds_is_ignored(self, wrap):
        logprobs, behavior, one = arrays([-1.0, -jnp.inf], [-1.0, jnp.nan], [1.0, 1.0])
        mask = jnp.array([[True, False]])
        function = wrap(lambda x: losses.cispo(x, behavior, one, one, mask))
        loss, count, metrics = function(logprobs)
        assert (loss, count) == (1, 1)
        chex.assert_tree_all_finite(metrics)
        np.testing.assert_array_equal(jax.grad(lambda x: function(x)[0])(logprobs), [[-1, 0]])


@pytest.mark.parametrize(
    "gap, advantage, loss, gradient",
    [
        (0.0, 2.0, -2.0, -2.0),
        (LOG2, 1.0, -1.2, 0.0),  # good and already likelier: bounded
        (-LOG2, 1.0, -0.5, -0.5),
        (LOG2, -1.0, 2.0, 2.0),
        (-LOG2, -1.0, 0.8, 0.0),  # bad and already less likely: bounded
    ],
)
def test_grpo_by_hand(gap, advantage, loss, gradient):
    logprobs, behavior, advantages, one = arrays([-1.0], [-1.0 - gap], [advantage], [1.0])

    def total(x):
        return losses.grpo(x, behavior, advantages, one, one)

    np.testing.assert_allclose(total(logprobs)[0], loss, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: total(x)[0])(logprobs), [[gradient]], rtol=1e-6)
    assert total(logprobs)[2]["clip_fraction"] == (gradient == 0)


def test_grpo_on_policy_has_the_gradient_of_cispo():
    logprobs, advantages, weights, mask = arrays([-1, -4], [2, -3], [0.5, 2], [1, 1])
    gradients = [
        jax.grad(lambda x, f=f: f(x, logprobs, advantages, weights, mask)[0])(logprobs)
        for f in (losses.cispo, losses.grpo)
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_cross_entropy_by_hand():
    logprobs, mask = arrays([-1.0, -2.0, -jnp.inf], [1, 1, 0])
    loss, count, _ = losses.cross_entropy(logprobs, mask)
    assert (loss, count) == (3, 2)


def test_sums_add_up_over_any_split():
    random = np.random.default_rng(0)
    whole = [jnp.asarray(random.normal(size=(4, 5)), jnp.float32) for _ in range(4)]
    whole.append(jnp.asarray(random.random((4, 5)) < 0.5))
    parts = [losses.cispo(*(a[i : i + 1] for a in whole)) for i in range(4)]
    added = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    chex.assert_trees_all_close(added, losses.cispo(*whole), rtol=1e-5, atol=1e-5)


def test_shapes_are_checked():
    good, bad = jnp.zeros((2, 3)), jnp.zeros((2, 1))
    with pytest.raises(AssertionError):
        losses.cispo(good, good, bad, good, good)  # would broadcast silently
    with pytest.raises(AssertionError):
        losses.cross_entropy(good[0], good[0])
