"""A user's program that keeps its run in a folder: called again it goes on."""

import sys

import jax

import fedax
from problems import quadratic_task

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    task = quadratic_task()
    fedax.train(
        task, fedax.scaffold(task.model, 0.05, num_local_steps=4, batch_size=2), num_rounds=120,
        cohort_size=4, evaluate_every=10, checkpoint_every=3, keep_best="test_distance",
        out=sys.argv[1], progress=False,
    )
