"""PyTorch with a client a core: threads of one process, each with a model and one core's kernels.

Nothing federated is around it: a thread takes the largest client that is left, sets its model to
the server's, walks its examples once with plain SGD, and adds its parameters, weighted, to a sum of
its own. It is the plan of BlazeFL 3 (clients in threads of one process, on a Python without its
lock), and an upper bound of what that can reach: PyTorch lets the lock go inside its kernels.
"""

import itertools
import os
import queue
import sys
import threading

import torch

import protocol
from torch_models import model_of, prepared, tensors


class Client(threading.Thread):
    """A core's model; trains the clients that it is given and adds up what they change.

    Attributes:
      total: the sum of the clients' parameters times their numbers of examples.
    """

    def __init__(self, name, path, check, todo, done):
        super().__init__(daemon=True)
        self.data, self.examples = prepared(name, path)
        self.net = model_of(self.data, dropout=not check).train()
        self.net.to(memory_format=self.net.memory_format)
        self.examples = in_layout(self.net, self.examples)
        self.todo, self.done = todo, done
        self.params = [p for p in self.net.parameters() if p.requires_grad]
        self.total = [torch.zeros_like(p) for p in self.params]
        self.server = None

    def run(self):
        torch.set_num_threads(1)  # of this thread
        while True:
            self.done.put(self.train(self.todo.get()))

    def train(self, client):
        batch_size, rate = self.data.workload.batch_size, self.data.workload.learning_rate
        start, end = int(self.data.offsets[client]), int(self.data.offsets[client + 1])
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.server)
        starts = range(start, end, batch_size)
        for first in starts:
            rows = slice(first, min(first + batch_size, end))
            loss = self.net.mean_loss(*(array[rows] for array in self.examples))
            grads = torch.autograd.grad(loss, self.params)
            with torch.no_grad():
                torch._foreach_add_(self.params, grads, alpha=-rate)
        with torch.no_grad():
            torch._foreach_add_(self.total, self.params, alpha=end - start)
        return len(starts)


def in_layout(net, arrays):
    """The examples in the layout that the model is fastest with."""
    return [
        array.contiguous(memory_format=net.memory_format) if array.ndim == 4 else array
        for array in arrays
    ]


def evaluate(net, arrays, batch_size=256):
    """The mean loss over batches, each core's threads with every other one."""
    batches = [
        [array[first : first + batch_size] for array in arrays]
        for first in range(0, len(arrays[0]), batch_size)
    ]
    cores = os.cpu_count()

    def walk(place):
        torch.set_num_threads(1)
        for batch in batches[place::cores]:
            net.evaluate(*batch)

    walks = [threading.Thread(target=walk, args=(place,)) for place in range(cores)]
    for thread in walks:
        thread.start()
    for thread in walks:
        thread.join()


def main(name, path, check):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data, _ = prepared(name, path)
    todo, done = queue.SimpleQueue(), queue.SimpleQueue()
    clients = [Client(name, path, check, todo, done) for _ in range(os.cpu_count())]
    net = model_of(data, dropout=False)
    server = [p.detach() for p in net.parameters() if p.requires_grad]
    for client in clients:
        client.server = server
        client.start()
    test = tensors(data.test())
    rounds = protocol.Rounds(
        lambda: net.evaluate(*tensors(data.check())), evaluate=lambda: evaluate(net, test),
        versions={"torch": torch.__version__},
    )
    for round_index in itertools.count():
        if not rounds.begin():
            return
        cohort = data.cohort(round_index)
        sizes = data.offsets[cohort + 1] - data.offsets[cohort]
        for place in (-sizes).argsort(kind="stable"):  # the largest first, so that all end together
            todo.put(int(cohort[place]))
        num_steps = sum(done.get() for _ in cohort)
        with torch.no_grad():
            torch._foreach_zero_(server)
            for client in clients:
                torch._foreach_add_(server, client.total, alpha=1 / float(sizes.sum()))
                torch._foreach_zero_(client.total)
        rounds.end(num_steps)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
