"""The dtype policy, and the dynamic loss scale that float16 gradients need."""

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class LossScale:
    """The factor that keeps float16 gradients from vanishing, and how it moves.

    The rule of Micikevicius et al. 2018, "Mixed precision training", section 3.2: after a step whose gradients
    overflow, the step is left out and the factor halved; after `growth_steps` good steps it is doubled.

    Args:
        initial: The first factor; 1 with `dynamic` false leaves gradients alone.
        growth_steps: Good steps before it doubles.
        dynamic: Whether it moves at all.
    """

    initial: float = 2.0**15
    growth_steps: int = 2000
    dynamic: bool = True

    @staticmethod
    def none() -> "LossScale":
        """No scaling: for float32 and bfloat16, whose range needs none."""
        return LossScale(1.0, 0, False)

    @staticmethod
    def of_policy(policy: str) -> "LossScale":
        """The scale that a dtype policy needs."""
        return LossScale() if policy == "mixed_float16" else LossScale.none()

    def after(self, scale: tf.Tensor, good_steps: tf.Tensor, finite: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The factor and the count of good steps after a step; float32 and int32 scalars."""
        if not self.dynamic:
            return scale, good_steps
        grow = finite & (good_steps + 1 >= self.growth_steps)
        good_steps = tf.where(finite & ~grow, good_steps + 1, 0)
        scale = tf.where(finite, tf.where(grow, scale * 2.0, scale), scale * 0.5)
        return scale, good_steps
