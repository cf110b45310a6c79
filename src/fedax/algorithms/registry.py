"""The algorithms that have a name on the command line, with their papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedax import algorithms
from fedax.algorithm import FederatedAlgorithm


class AlgorithmInfo(NamedTuple):
    """What cannot be computed from an algorithm.

    Attributes:
      factory: (model, **options) -> algorithm; for a wrapper see `WRAPPERS`.
      paper: its sources: short names of `PAPERS` and `EARLIER`, each with the place in the paper.
      extra_gradients: gradient work beyond one gradient per local step; empty if there is none.
    """

    factory: Callable[..., FederatedAlgorithm]
    paper: str
    extra_gradients: str = ""


class Paper(NamedTuple):
    """A paper: authors, title, year and address; the address is empty if there is none."""

    authors: str
    title: str
    year: int
    address: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.authors, self.title, str(self.year))))


# The papers that fedax implements, by short names; `fedax list algorithms` prints both.
REDDI, CHARLES, MIME, ELASTIC, DECAYING = "Reddi", "Charles", "Mime", "Elastic", "DecayK"
PAPERS = {
    REDDI: Paper(
        "Reddi et al.", "Adaptive Federated Optimization", 2021, "https://arxiv.org/abs/2003.00295"
    ),
    CHARLES: Paper(
        "Charles and Konečný",
        "On the Outsized Importance of Learning Rates in Local Update Methods", 2020,
        "https://arxiv.org/abs/2007.00878",
    ),
    MIME: Paper(
        "Karimireddy et al.",
        "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020,
        "https://arxiv.org/abs/2008.03606",
    ),
    ELASTIC: Paper(
        "Chen et al.", "Elastic Aggregation for Federated Optimization", 2023,
        "https://openaccess.thecvf.com/content/CVPR2023/html/"
        "Chen_Elastic_Aggregation_for_Federated_Optimization_CVPR_2023_paper.html",
    ),
    DECAYING: Paper(
        "Anonymous, submitted to ICLR 2021",
        "Faster Federated Learning with Decaying Number of Local SGD Steps", 2021,
    ),
}
# The papers that they build on, by short names.
EARLIER = {
    "Acar 2021": Paper(
        "Acar et al.", "Federated Learning Based on Dynamic Regularization", 2021,
        "https://arxiv.org/abs/2111.04263",
    ),
    "Alistarh 2017": Paper(
        "Alistarh et al.", "QSGD: Communication-Efficient SGD via Gradient Quantization and "
        "Encoding", 2017, "https://arxiv.org/abs/1610.02132",
    ),
    "Andrew 2021": Paper(
        "Andrew et al.", "Differentially Private Learning with Adaptive Clipping", 2021,
        "https://arxiv.org/abs/1905.03871",
    ),
    "Arivazhagan 2019": Paper(
        "Arivazhagan et al.", "Federated Learning with Personalization Layers", 2019,
        "https://arxiv.org/abs/1912.00818",
    ),
    "Choquette-Choo 2023": Paper(
        "Choquette-Choo et al.", "(Amplified) Banded Matrix Factorization: A Unified Approach to "
        "Private Training", 2023, "https://arxiv.org/abs/2306.08153",
    ),
    "Collins 2021": Paper(
        "Collins et al.", "Exploiting Shared Representations for Personalized Federated Learning",
        2021, "https://arxiv.org/abs/2102.07078",
    ),
    "Deng 2020": Paper(
        "Deng et al.", "Adaptive Personalized Federated Learning", 2020,
        "https://arxiv.org/abs/2003.13461",
    ),
    "Dinh 2020": Paper(
        "T. Dinh et al.", "Personalized Federated Learning with Moreau Envelopes", 2020,
        "https://arxiv.org/abs/2006.08848",
    ),
    "Fallah 2020": Paper(
        "Fallah et al.", "Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach", 2020, "https://arxiv.org/abs/2002.07948",
    ),
    "Finn 2017": Paper(
        "Finn et al.", "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", 2017,
        "https://arxiv.org/abs/1703.03400",
    ),
    "Ghosh 2020": Paper(
        "Ghosh et al.", "An Efficient Framework for Clustered Federated Learning", 2020,
        "https://arxiv.org/abs/2006.04088",
    ),
    "Gong 2022": Paper(
        "Gong et al.", "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to "
        "System Heterogeneity", 2022, "https://arxiv.org/abs/2204.03529",
    ),
    "Hsu 2019": Paper(
        "Hsu et al.", "Measuring the Effects of Non-Identical Data Distribution for Federated "
        "Visual Classification", 2019, "https://arxiv.org/abs/1909.06335",
    ),
    "Jhunjhunwala 2023": Paper(
        "Jhunjhunwala et al.", "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023,
        "https://arxiv.org/abs/2301.09604",
    ),
    "Karimireddy 2019": Paper(
        "Karimireddy et al.", "Error Feedback Fixes SignSGD and other Gradient Compression "
        "Schemes", 2019, "https://arxiv.org/abs/1901.09847",
    ),
    "Karimireddy 2020": Paper(
        "Karimireddy et al.", "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        2020, "https://arxiv.org/abs/1910.06378",
    ),
    "Li 2020": Paper(
        "Li et al.", "Federated Optimization in Heterogeneous Networks", 2020,
        "https://arxiv.org/abs/1812.06127",
    ),
    "Li 2020b": Paper(
        "Li et al.", "Fair Resource Allocation in Federated Learning", 2020,
        "https://arxiv.org/abs/1905.10497",
    ),
    "Li 2021": Paper(
        "Li et al.", "Tilted Empirical Risk Minimization", 2021, "https://arxiv.org/abs/2007.01162",
    ),
    "Li 2021b": Paper(
        "Li et al.", "Ditto: Fair and Robust Federated Learning Through Personalization", 2021,
        "https://arxiv.org/abs/2012.04221",
    ),
    "Li 2021c": Paper(
        "Li et al.", "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        2021, "https://arxiv.org/abs/2102.07623",
    ),
    "Luo 2019": Paper(
        "Luo et al.", "Adaptive Gradient Methods with Dynamic Bound of Learning Rate", 2019,
        "https://arxiv.org/abs/1902.09843",
    ),
    "McMahan 2017": Paper(
        "McMahan et al.", "Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data", 2017, "https://arxiv.org/abs/1602.05629",
    ),
    "McMahan 2018": Paper(
        "McMahan et al.", "Learning Differentially Private Recurrent Language Models", 2018,
        "https://arxiv.org/abs/1710.06963",
    ),
    "Mishchenko 2022": Paper(
        "Mishchenko et al.", "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication "
        "Acceleration! Finally!", 2022, "https://arxiv.org/abs/2202.09357",
    ),
    "Mitra 2021": Paper(
        "Mitra et al.", "Linear Convergence in Federated Learning: Tackling Client Heterogeneity "
        "and Sparse Gradients", 2021, "https://arxiv.org/abs/2102.07053",
    ),
    "Mohri 2019": Paper(
        "Mohri et al.", "Agnostic Federated Learning", 2019, "https://arxiv.org/abs/1902.00146",
    ),
    "Reddi 2018": Paper(
        "Reddi et al.", "On the Convergence of Adam and Beyond", 2018,
        "https://arxiv.org/abs/1904.09237",
    ),
    "Stich 2019": Paper(
        "Stich", "Local SGD Converges Fast and Communicates Little", 2019,
        "https://arxiv.org/abs/1805.09767",
    ),
    "Wang 2020": Paper(
        "Wang et al.", "Tackling the Objective Inconsistency Problem in Heterogeneous Federated "
        "Optimization", 2020, "https://arxiv.org/abs/2007.07481",
    ),
    "Xie 2019": Paper(
        "Xie et al.", "Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with "
        "Adaptive Learning Rates", 2019, "https://arxiv.org/abs/1911.09030",
    ),
    "Yuan 2020": Paper(
        "Yuan and Ma", "Federated Accelerated Stochastic Gradient Descent", 2020,
        "https://arxiv.org/abs/2006.08950",
    ),
    "Yurochkin 2019": Paper(
        "Yurochkin et al.", "Bayesian Nonparametric Federated Learning of Neural Networks", 2019,
        "https://arxiv.org/abs/1905.12022",
    ),
    "Zhang 2019": Paper(
        "Zhang et al.", "Lookahead Optimizer: k steps forward, 1 step back", 2019,
        "https://arxiv.org/abs/1907.08610",
    ),
}
FULL = "1 pass"
TWICE = "1 pass, 2 a step"
LOSSES = "1 pass, loss only"
SECOND = "1 more a step"


ALGORITHMS: dict[str, AlgorithmInfo] = {
    "adaalter": AlgorithmInfo(algorithms.adaalter, "Xie 2019, Alg. 4"),
    "afl": AlgorithmInfo(algorithms.afl, "Mohri 2019, section 4", LOSSES),
    "apfl": AlgorithmInfo(algorithms.apfl, "Deng 2020, Alg. 1", SECOND),
    "centralised": AlgorithmInfo(algorithms.centralised, f"{REDDI}, baseline"),
    "cmime": AlgorithmInfo(algorithms.cmime, MIME, TWICE),
    "ditto": AlgorithmInfo(algorithms.ditto, "Li 2021b, Alg. 1", SECOND),
    "fedac": AlgorithmInfo(algorithms.fedac, "Yuan 2020, Alg. 1"),
    "fedadabound": AlgorithmInfo(algorithms.fedadabound, f"Luo 2019; {REDDI}"),
    "fedadagrad": AlgorithmInfo(algorithms.fedadagrad, f"{REDDI}, Alg. 2"),
    "fedadam": AlgorithmInfo(algorithms.fedadam, f"{REDDI}, Alg. 2; {DECAYING}"),
    "fedadmm": AlgorithmInfo(algorithms.fedadmm, "Gong 2022, Alg. 1"),
    "fedamsgrad": AlgorithmInfo(algorithms.fedamsgrad, f"Reddi 2018; {REDDI}"),
    "fedavg": AlgorithmInfo(algorithms.fedavg, f"McMahan 2017; {REDDI}"),
    "fedavgm": AlgorithmInfo(algorithms.fedavgm, f"Hsu 2019; {REDDI}"),
    "feddyn": AlgorithmInfo(algorithms.feddyn, "Acar 2021, Alg. 1"),
    "fedexp": AlgorithmInfo(algorithms.fedexp, "Jhunjhunwala 2023, Alg. 1"),
    "fedlin": AlgorithmInfo(algorithms.fedlin, "Mitra 2021, Alg. 1", "2 passes"),
    "fednova": AlgorithmInfo(algorithms.fednova, "Wang 2020, eq. 10"),
    "fedopt": AlgorithmInfo(algorithms.fedopt, f"{REDDI}, Alg. 1"),
    "fedprox": AlgorithmInfo(algorithms.fedprox, f"Li 2020; {ELASTIC}"),
    "fedrep": AlgorithmInfo(algorithms.fedrep, "Collins 2021, Alg. 1", "steps of the head"),
    "fedsgd": AlgorithmInfo(algorithms.fedsgd, f"{DECAYING}, Alg. 1, 2"),
    "fedyogi": AlgorithmInfo(algorithms.fedyogi, f"{REDDI}, Alg. 2"),
    "fomaml": AlgorithmInfo(algorithms.fomaml, f"Finn 2017; {CHARLES}"),
    "ifca": AlgorithmInfo(algorithms.ifca, "Ghosh 2020, Alg. 1", "k passes, loss only"),
    "local_adam": AlgorithmInfo(algorithms.local_adam, f"{REDDI}, section 1"),
    "local_sgd": AlgorithmInfo(algorithms.local_sgd, f"Stich 2019; {CHARLES}"),
    "local_update": AlgorithmInfo(algorithms.local_update, f"{CHARLES}, Alg. 1, 2"),
    "lookahead": AlgorithmInfo(algorithms.lookahead, f"Zhang 2019; {CHARLES}"),
    "maml": AlgorithmInfo(algorithms.maml, f"{CHARLES}, eq. 14", "2nd order, 1 batch"),
    "mime": AlgorithmInfo(algorithms.mime, f"{MIME}, Alg. 1", TWICE),
    "mimelite": AlgorithmInfo(algorithms.mimelite, f"{MIME}, Alg. 1", FULL),
    "mimemvr": AlgorithmInfo(
        algorithms.mimemvr, f"{MIME}, eq. 14, 15",
        "2 passes, 2 a step",
    ),
    "minibatch_sgd": AlgorithmInfo(algorithms.minibatch_sgd, f"{CHARLES}, Theta_1"),
    "perfedavg": AlgorithmInfo(algorithms.perfedavg, "Fallah 2020, Alg. 1", "1 or 3 more a step"),
    "pfedme": AlgorithmInfo(algorithms.pfedme, "Dinh 2020, Alg. 1", "K - 1 more a step"),
    "pfnm": AlgorithmInfo(algorithms.pfnm, f"Yurochkin 2019; {ELASTIC}"),
    "qfedavg": AlgorithmInfo(algorithms.qfedavg, "Li 2020b, Alg. 2", LOSSES),
    "scaffnew": AlgorithmInfo(algorithms.scaffnew, "Mishchenko 2022, Alg. 2"),
    "scaffold": AlgorithmInfo(
        algorithms.scaffold, f"Karimireddy 2020; {REDDI}", "1 pass if option I"
    ),
    "server_only": AlgorithmInfo(
        algorithms.server_only, f"{MIME}, section 6", "1 pass, no steps"
    ),
    "term": AlgorithmInfo(algorithms.term, "Li 2021, eq. 1", LOSSES),
}

# A wrapper's name comes before what it wraps, as in "local_update_decay+elastic+fedprox"; the
# second entry is what it wraps when nothing follows.
WRAPPERS: dict[str, tuple[AlgorithmInfo, str]] = {
    "compressed": (
        AlgorithmInfo(algorithms.compressed, "Alistarh 2017; Karimireddy 2019"), "fedavg",
    ),
    "elastic": (
        AlgorithmInfo(algorithms.elastic, f"{ELASTIC}, Alg. 1, 2", "1 pass held-out"),
        "fedavg",
    ),
    "local_update_decay": (
        AlgorithmInfo(
            algorithms.local_update_decay, f"{CHARLES}, Alg. 3, 4",
            LOSSES,
        ),
        "local_update",
    ),
    "personal": (
        AlgorithmInfo(algorithms.personal, "Arivazhagan 2019, Alg. 1, 2; Li 2021c, Alg. 1"),
        "fedavg",
    ),
    "private": (
        AlgorithmInfo(
            algorithms.private, "McMahan 2018, Alg. 1; Andrew 2021, Alg. 1; Choquette-Choo 2023",
        ),
        "fedavg",
    ),
}
