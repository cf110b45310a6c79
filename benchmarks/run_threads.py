"""PyTorch with a client a core: threads of one process, each with a model and one core's kernels.

Nothing federated is around it: a thread takes the largest client that is left, sets its model to
the server's, walks its examples once with the method's steps, and adds its upload, weighted, to a
sum of its own. It is the plan of BlazeFL 3 (clients in threads of one process, on a Python without
its lock), and an upper bound of what that can reach: PyTorch lets the lock go inside its kernels.
"""

import functools
import itertools
import os
import queue
import sys
import threading

import numpy as np
import torch

import protocol
import workloads
from torch_methods import METHODS
from torch_models import model_of, prepared, tensors


class Worker(threading.Thread):
    """A core's model; does what it is given with one client after another.

    Attributes:
      params: this model's, which training changes in place.
      total: the sum of what the clients upload, times their numbers of examples; None: nothing yet.
    """

    def __init__(self, name, path, check, todo, done):
        super().__init__(daemon=True)
        self.data, examples = prepared(name, path)
        self.net = model_of(self.data, dropout=not check).train()
        self.net.to(memory_format=self.net.memory_format)
        self.examples = in_layout(self.net, examples)
        self.todo, self.done = todo, done
        self.params = [p for p in self.net.parameters() if p.requires_grad]
        self.total = None

    def run(self):
        torch.set_num_threads(1)  # of this thread
        while True:
            self.done.put(self.todo.get()(self))

    def take_part(self, exchange, client):
        """A client's part in an exchange; returns its number of local steps."""
        start, end = int(self.data.offsets[client]), int(self.data.offsets[client + 1])
        upload, num_steps = exchange(self, client, start, end)
        with torch.no_grad():
            if self.total is None:
                self.total = [torch.zeros_like(array) for array in upload]
            torch._foreach_add_(self.total, upload, alpha=end - start)
        return num_steps

    def minibatches(self, start, end):
        size = self.data.workload.batch_size
        for first in range(start, end, size):
            rows = slice(first, min(first + size, end))
            yield [array[rows] for array in self.examples]

    def gradient(self, batch):
        return torch.autograd.grad(self.net.mean_loss(*batch), self.params)

    def set_params(self, params):
        with torch.no_grad():
            torch._foreach_copy_(self.params, params)


def in_layout(net, arrays):
    """The examples in the layout that the model is fastest with."""
    return [
        array.contiguous(memory_format=net.memory_format) if array.ndim == 4 else array
        for array in arrays
    ]


class Evaluations:
    """Evaluations by the workers: batches of all examples, or a client at a time."""

    def __init__(self, data, net, server, at_once):
        self.data, self.net, self.server = data, net.eval(), server
        self.at_once = at_once  # (jobs) -> what the workers make of them, in any order
        self.arrays = in_layout(net, tensors(data.test()))
        counts = torch.from_numpy(np.diff(data.test_offsets()))
        self.owners = torch.arange(len(counts)).repeat_interleave(counts)

    def batches(self, start, end, size=256):
        for first in range(start, end, size):
            yield [array[first : min(first + size, end)] for array in self.arrays]

    def rows(self):
        """Loss times weight and weight of all examples, [2, n]."""
        batches = enumerate(self.batches(0, len(self.owners)))
        found = self.at_once([
            lambda worker, place=place, batch=batch: (place, self.net.measure(*batch))  # noqa: ARG005
            for place, batch in batches
        ])
        return torch.cat([measured for _, measured in sorted(found, key=lambda one: one[0])], 1)

    def pooled(self):
        total, weight = self.rows().sum(1)
        return total / weight

    def clients(self):
        rows = self.rows()
        total, weight = torch.zeros(2, int(self.owners[-1]) + 1).index_add_(1, self.owners, rows)
        return (total / weight)[weight > 0].mean()

    def personalised(self, *halves):
        def tune(worker, start, middle, end):
            worker.set_params(self.server)
            for batch in self.batches(start, middle, self.data.workload.batch_size):
                worker.net.sgd_step(worker.params, self.data.workload.learning_rate, *batch)
            worker.net.eval()
            found = [
                sum(net.measure(*batch).sum(1) for batch in self.batches(middle, end))
                for net in (self.net, worker.net)
            ]
            worker.net.train()
            return found

        found = self.at_once([
            functools.partial(tune, start=start, middle=middle, end=end)
            for start, middle, end in zip(*(a.tolist() for a in halves), strict=True)
        ])
        total, weight = sum(after for _, after in found)
        return total / weight


def main(name, path, check):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data, _ = prepared(name, path)
    todo, done = queue.SimpleQueue(), queue.SimpleQueue()
    workers = [Worker(name, path, check, todo, done) for _ in range(os.cpu_count())]
    for worker in workers:
        worker.start()

    def at_once(jobs):
        for job in jobs:
            todo.put(job)
        return [done.get() for _ in jobs]

    net = model_of(data, dropout=False)
    net.to(memory_format=net.memory_format)
    server = [p.detach() for p in net.parameters() if p.requires_grad]
    method = METHODS[data.workload.method](server, data.workload.learning_rate, data.num_clients)
    evaluations = Evaluations(data, net, server, at_once)
    # A single step with all of a client's examples does not depend on their order.
    halves = data.halves(data.workload.batch_size if check else workloads.NUM_TEST)
    rounds = protocol.Rounds(
        lambda: net.evaluate(*in_layout(net, tensors(data.check()))),
        evaluate={
            "pooled": evaluations.pooled, "clients": evaluations.clients,
            "personalised": lambda: evaluations.personalised(*halves),
        },
        versions={"torch": torch.__version__},
    )
    for round_index in itertools.count():
        if not rounds.begin():
            return
        cohort = data.cohort(round_index)
        sizes = data.offsets[cohort + 1] - data.offsets[cohort]
        order = (-sizes).argsort(kind="stable")  # the largest first, so that all end together
        num_steps = 0
        for exchange, fold in method.exchanges:
            num_steps += sum(at_once([
                functools.partial(Worker.take_part, exchange=exchange, client=client)
                for client in cohort[order].tolist()
            ]))
            with torch.no_grad():
                mean, *others = (worker.total for worker in workers if worker.total is not None)
                for total in others:
                    torch._foreach_add_(mean, total)
                torch._foreach_mul_(mean, 1 / float(sizes.sum()))
                fold(mean, len(cohort))
                for total in (mean, *others):
                    torch._foreach_zero_(total)
        rounds.end(num_steps)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
