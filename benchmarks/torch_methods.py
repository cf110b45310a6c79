"""Methods for PyTorch's threads: what a client does in an exchange, and what the server then does.

The mathematics is that of `fedax.fedavg`, `fedax.scaffold` and `fedax.mime`, written in place and
for all parameters at once. An exchange is (worker, client, start, end) -> (upload, local steps),
and a fold is (mean upload, cohort size) -> None.
"""

import copy

import torch


class FedAvg:
    """Clients upload their parameters after one epoch of SGD, and the server takes the mean."""

    def __init__(self, server, rate, num_clients):
        self.server, self.rate, self.num_clients = server, rate, num_clients
        self.exchanges = [(self.train, self.average)]

    def train(self, worker, client, start, end):
        del client
        worker.set_params(self.server)
        num_steps = 0
        for batch in worker.minibatches(start, end):
            worker.net.sgd_step(worker.params, self.rate, *batch)
            num_steps += 1
        return worker.params, num_steps

    def average(self, mean, cohort_size):
        del cohort_size
        torch._foreach_copy_(self.server, mean)


class Scaffold(FedAvg):
    """SCAFFOLD, option II: c_i <- c_i - c + (x - x_i) / (K rate).

    What is added to the gradient, c - c_i, is computed once a client.
    """

    def __init__(self, server, rate, num_clients):
        super().__init__(server, rate, num_clients)
        self.control = [torch.zeros_like(p) for p in server]
        self.own = {}  # client -> c_i, if it is not 0

    def train(self, worker, client, start, end):
        if client not in self.own:
            self.own[client] = [torch.zeros_like(p) for p in self.server]
        own = self.own[client]
        with torch.no_grad():
            correction = torch._foreach_sub(self.control, own)
            worker.set_params(self.server)
        num_steps = 0
        for batch in worker.minibatches(start, end):
            grads = worker.gradient(batch)
            with torch.no_grad():
                torch._foreach_add_(worker.params, grads, alpha=-self.rate)
                torch._foreach_add_(worker.params, correction, alpha=-self.rate)
            num_steps += 1
        with torch.no_grad():
            change = torch._foreach_sub(self.server, worker.params)
            torch._foreach_div_(change, num_steps * self.rate)
            torch._foreach_sub_(change, self.control)
            torch._foreach_add_(own, change)
        return [*worker.params, *change], num_steps

    def average(self, mean, cohort_size):
        num = len(self.server)
        torch._foreach_copy_(self.server, mean[:num])
        torch._foreach_add_(self.control, mean[num:], alpha=cohort_size / self.num_clients)


class Mime(FedAvg):
    """Mime with SGD and momentum: U(g, m) = (1 - beta) g + beta m, and m <- U(c, m).

    The step's parts that are the same in all of a round, (1 - beta) c + beta m, are added once.
    """

    momentum = 0.9

    def __init__(self, server, rate, num_clients):
        super().__init__(server, rate, num_clients)
        self.moment = [torch.zeros_like(p) for p in server]
        self.anchors = {}  # worker -> a copy of its model, which stays at the server's parameters
        self.exchanges = [(self.gradient, self.keep), (self.train, self.average)]

    def gradient(self, worker, client, start, end):
        del client
        worker.set_params(self.server)
        total = [torch.zeros_like(p) for p in self.server]
        for batch in worker.minibatches(start, end):
            grads = worker.gradient(batch)
            with torch.no_grad():
                torch._foreach_add_(total, grads, alpha=len(batch[0]) / (end - start))
        return total, 0

    def keep(self, mean, cohort_size):
        """m <- U(c, m), which is also what every local step adds."""
        del cohort_size
        torch._foreach_mul_(self.moment, self.momentum)
        torch._foreach_add_(self.moment, mean, alpha=1 - self.momentum)

    def train(self, worker, client, start, end):
        del client
        if worker not in self.anchors:
            self.anchors[worker] = copy.deepcopy(worker.net)
        anchor = self.anchors[worker]
        anchor_params = list(anchor.parameters())
        worker.set_params(self.server)
        num_steps = 0
        with torch.no_grad():
            torch._foreach_copy_(anchor_params, self.server)
        for batch in worker.minibatches(start, end):
            grads = worker.gradient(batch)
            anchored = torch.autograd.grad(anchor.mean_loss(*batch), anchor_params)
            with torch.no_grad():
                step = self.rate * (1 - self.momentum)
                torch._foreach_add_(worker.params, grads, alpha=-step)
                torch._foreach_add_(worker.params, anchored, alpha=step)
                torch._foreach_add_(worker.params, self.moment, alpha=-self.rate)
            num_steps += 1
        return worker.params, num_steps


METHODS = {"fedavg": FedAvg, "scaffold": Scaffold, "mime": Mime}
