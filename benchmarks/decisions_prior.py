"""The class shares at the place of use, for `benchmarks.decisions`: on test and unseen images, and what is possible.

The settings are chosen on training images of CIFAR-100 and CIFAR-10 that the reference runs have not seen (`choices`).
Classes of which fewer than `LEAST` are unseen are left out there, with their logits.
"""

from unittest.mock import patch

import numpy as np
import torch

import srepr
from benchmarks.__main__ import RESULTS
from srepr.calibration import Calibration, best_temperature, calibrate, class_weights
from srepr.decisions import likelihood, prior
from srepr.decisions.prior import estimate_prior
from srepr.run.classifiers import open_run

HALVES, INPUTS = 10, 1000
TIMES = {"em": 200, "bbse": 1}  # draws for the intervals, which are measured for one of them
SHIFTS = ("forward 10", "forward 50", "backward 10", "backward 50", "Dirichlet")
OTHERS = ("forward 50, order at random", "forward 50 with noise", "a tenth of the classes", "equal")
LEAST, HELD = 120, 50
QUAPY = ("EMQ", "BBSEhard", "BBSEsoft")


def mix(name, classes, chance):
    """The class shares of a shift."""
    if name == "Dirichlet":
        return chance.dirichlet(np.ones(classes))
    if name == "equal":
        return np.full(classes, 1 / classes)
    if name == "a tenth of the classes":
        few = max(2, classes // 10)
        return chance.permutation(np.repeat([1 / few, 0.0], [few, classes - few]))
    direction, ratio = name.split(",")[0].split()[:2]
    shares = float(ratio) ** (-np.arange(classes) / (classes - 1))
    if name.endswith("random"):
        shares = chance.permutation(shares)
    if name.endswith("noise"):
        shares = shares * np.exp(chance.normal(scale=0.5, size=classes))
    return (shares if direction == "forward" else shares[::-1]) / shares.sum()


def sample(labels, rows, shares, size, chance):
    """About `size` of the rows, with these class shares as far as there are examples; none twice."""
    counts = np.floor(shares * size + chance.random(len(shares))).astype(int)
    members = [chance.permutation(rows[labels[rows] == k])[:count] for k, count in enumerate(counts)]
    return np.concatenate(members)


def adjusted(p, shares):
    p = p * shares
    return p / p.sum(1, keepdims=True)


def quality(p, y):
    return np.array([(p.argmax(1) == y).mean(), -np.log(p[np.arange(len(y)), y].clip(1e-30)).mean()])


def recovered(qualities, kind):
    """The share of the gain under the true shares, for accuracy and NLL."""
    none, found, oracle = (np.mean(qualities[name], axis=0) for name in ("none", kind, "oracle"))
    return dict(zip(("ACC recovered", "NLL recovered"), ((found - none) / (oracle - none)).tolist(), strict=True))


def covered(estimate, labels, rows, shares, size, classes):
    """How often the share of a class in the mix, as far as there are examples of it, lies in its interval."""
    able = np.minimum(shares * size, np.bincount(labels[rows], minlength=classes))
    truth = able / able.sum()
    return np.mean((truth >= estimate.low) & (truth <= estimate.high))


def unknown_mix(p, labels, counts, anchors):
    """L1 error of the estimated shares, and what is recovered of the accuracy and the NLL under the true ones."""
    chance, classes = np.random.default_rng(0), p.shape[1]
    content, cases = {"p": p, "y": labels}, []
    for _ in range(HALVES):
        known, rest = np.split(chance.permutation(len(labels)), 2)
        for shift in SHIFTS:
            shares = mix(shift, classes, chance)
            new = sample(labels, rest, shares, INPUTS, chance)
            content |= {f"known{len(cases)}": known, f"new{len(cases)}": new}
            cases.append((shift, shares, known, rest, new))
    others = anchors("prior", content | {"cases": len(cases)})
    errors, qualities, inside, p_values = {}, {}, {}, {}
    for case, (shift, shares, known, rest, new) in enumerate(cases):
        truth = np.bincount(labels[new], minlength=classes) / len(new)
        how = {"held": (p[known], labels[known]), "counts": counts}
        found = {kind: estimate_prior(p[new], **how, method=kind, resamples=times) for kind, times in TIMES.items()}
        estimates = {"none": np.full(classes, 1 / classes)}
        estimates |= {f"srepr {kind}": np.array(one.shares) for kind, one in found.items()}
        estimates |= {f"QuaPy {kind}": others[f"{kind}{case}"] for kind in QUAPY} | {"oracle": truth}
        for kind, guess in estimates.items():
            errors.setdefault(kind, {}).setdefault(shift, []).append(np.abs(guess - truth).sum())
            quality_ = quality(adjusted(p[new], guess), labels[new])
            qualities.setdefault(shift, {}).setdefault(kind, []).append(quality_)
        seen = covered(found["em"], labels, rest, shares, INPUTS, classes)
        inside.setdefault(shift, []).append(seen)
        p_values.setdefault(shift, []).append(found["em"].p_value)
    table = []
    for kind, each in errors.items():
        row = {shift: float(np.mean(each[shift])) for shift in SHIFTS}
        table.append({"estimate": kind, **row, "mean": float(np.mean(list(row.values())))})
    after = []
    for shift in SHIFTS:
        means = {kind: np.mean(found, axis=0) for kind, found in qualities[shift].items()}
        shown = {"none": "none", "srepr": "srepr em", "EMQ": "QuaPy EMQ", "oracle": "oracle"}
        numbers = {
            f"{what}, {name}": float(scale * means[kind][place])
            for place, (what, scale) in enumerate({"ACC": 100, "NLL": 1}.items())
            for name, kind in shown.items()
        }
        tested = {
            "true share in interval": float(np.mean(inside[shift])),
            "p <= 0.01": float(np.mean(np.array(p_values[shift]) <= 0.01)),
        }
        after.append({"mix": shift, **numbers, **recovered(qualities[shift], "srepr em"), **tested})
    return {"L1": [row for row in table if row["estimate"] != "oracle"], "after": after}


def exact_posterior(like, chance, sweeps=400):
    """The mean of the shares under Dir(1) by Gibbs sampling, the first quarter left out."""
    q, found = np.full(like.shape[1], 1 / like.shape[1]), []
    for _ in range(sweeps):
        sums = np.cumsum(like * q, axis=1)
        drawn = (sums < chance.random(len(like))[:, None] * sums[:, -1:]).sum(1)
        q = chance.dirichlet(1 + np.bincount(drawn, minlength=len(q)))
        found.append(q)
    return np.mean(found[sweeps // 4 :], axis=0)


def numbers_of_inputs(p, labels, counts, times=5):
    """What is recovered from few inputs and from as many as the mix can have, a fifth of the images being held out.

    And what is possible: the labels are drawn from the calibrated probabilities, so that these are exact, and the
    shares are the mean of the exact posterior under the distribution that the Dirichlet mix was drawn from.
    """
    chance, classes = np.random.default_rng(2), p.shape[1]
    even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    fitted = likelihood.calibration(torch.from_numpy(p), torch.from_numpy(labels), even)
    exact = fitted(torch.from_numpy(p)).numpy()
    sums = exact.cumsum(1)
    invented = (sums < chance.random(len(p))[:, None] * sums[:, -1:]).sum(1)
    rows = []
    for size in (250, 1000, 10 * len(p)):
        for kind in (*SHIFTS, "Dirichlet, exact probabilities"):
            qualities, used, errors = {}, [], []
            q, y = (exact, invented) if kind.endswith("exact probabilities") else (p, labels)
            for _ in range(times):
                order = chance.permutation(len(y))
                known, rest = order[: len(y) // 5], order[len(y) // 5 :]
                shares = mix(kind.split(",")[0], classes, chance)
                able = np.bincount(y[rest], minlength=classes)
                new = sample(y, rest, shares, min(size, int((able / shares.clip(1e-9)).min())), chance)
                truth = np.bincount(y[new], minlength=classes) / len(new)
                if q is exact:
                    found = exact_posterior(q[new], chance)
                else:
                    found = estimate_prior(q[new], held=(q[known], y[known]), counts=counts, resamples=1).shares
                for name, guess in {"none": np.ones(classes), "oracle": truth, "found": np.array(found)}.items():
                    qualities.setdefault(name, []).append(quality(adjusted(q[new], guess), y[new]))
                used.append(len(new))
                errors.append(np.abs(np.array(found) - truth).sum())
            row = {"mix": kind, "inputs": round(float(np.mean(used))), "L1": float(np.mean(errors))}
            rows.append(row | recovered(qualities, "found"))
    return rows


def unseen_probabilities(name, data_dir, keep):
    """Probabilities, labels and training counts of unseen training images; made once."""
    file = keep / f"{name}-unseen.npz"
    if not file.exists():
        run = open_run(RESULTS / "runs" / name, data_dir=data_dir, quiet=True)
        own, full = (srepr.data.load(name, data_dir=data_dir, **change).train for change in ({}, {"imbalance": 1.0}))
        seen = {image.tobytes() for image in own.inputs}
        part = full.subset(np.flatnonzero([image.tobytes() not in seen for image in full.inputs]))
        logits, labels = zip(*run.networks["swa"].outputs(run.classifiers["auto"].head, part), strict=True)
        np.savez(file, z=torch.cat(logits), y=torch.cat(labels), counts=run.networks["swa"].about.counts)
    found = np.load(file)
    kept = np.flatnonzero(np.bincount(found["y"], minlength=len(found["counts"])) >= LEAST)
    rows = np.isin(found["y"], kept)
    z = torch.from_numpy(found["z"][rows][:, kept]).double()
    return z.softmax(1).numpy(), np.searchsorted(kept, found["y"][rows]), found["counts"][kept]


def parted(labels, counts, held, chance):
    """Rows to hold out, `HELD` of each class or a long tail of them, and all others."""
    numbers = np.full(len(counts), HELD) if held == "equal" else np.ceil(HELD * counts / counts.max()).astype(int)
    order = chance.permutation(len(labels))
    places = [order[labels[order] == k] for k in range(len(counts))]
    pairs = list(zip(places, numbers, strict=True))
    return np.concatenate([own[:n] for own, n in pairs]), np.concatenate([own[n:] for own, n in pairs])


def after_the_fact(p, labels, counts, times=5):
    """Class-balanced accuracy and NLL of unseen images, calibrated on some of them."""
    p, y = torch.from_numpy(p), torch.from_numpy(labels)
    z, even = p.clamp(min=1e-30).log(), torch.full((p.shape[1],), 1 / p.shape[1], dtype=torch.float64)
    rows = []
    for held in ("equal", "long tail"):
        chance, found = np.random.default_rng(4), {}
        for _ in range(times):
            known, rest = parted(labels, counts, held, chance)
            unsure = 1 / (len(known) + 2)
            with patch.object(likelihood, "LARGEST", 0):
                biased = likelihood.calibration(p[known], y[known], even)
            logits = {
                "none": z[rest],
                "temperature": Calibration(best_temperature(z[known], y[known], unsure)).of(z[rest]),
                "temperature and adjustment": calibrate(z[known], y[known], torch.tensor(counts), unsure).of(z[rest]),
                "temperature and a bias for each class": biased.logits(p[rest]),
                "and a matrix": likelihood.calibration(p[known], y[known], even).logits(p[rest]),
            }
            weights = class_weights(y[rest])
            for kind, values in logits.items():
                right = (values.argmax(1) == y[rest]).double()
                losses = torch.nn.functional.cross_entropy(values, y[rest], reduction="none")
                found.setdefault(kind, []).append([float(100 * weights @ right), float(weights @ losses)])
        for kind, numbers in found.items():
            accuracy, nll = np.mean(numbers, axis=0).tolist()
            rows.append({"held out": held, "calibration": kind, "ACC": accuracy, "NLL": nll})
    return rows


def choices(p, labels, counts, times=1):
    """Each setting on unseen images."""
    classes = p.shape[1]
    base = {"CONFUSION": likelihood.CONFUSION, "STRENGTHS": prior.STRENGTHS, "TEMPERED": prior.TEMPERED}
    settings = [
        ("as it is", {}, 50),
        ("TEMPERED = 1/8", {"TEMPERED": 1 / 8}, 50),
        ("TEMPERED = 1", {"TEMPERED": 1.0}, 50),
        ("CONFUSION = 10", {"CONFUSION": 10.0}, 1),
        ("CONFUSION = 200", {"CONFUSION": 200.0}, 1),
        ("no matrix", {"CONFUSION": 1e9}, 1),
        ("no matrix, c = K, a = 0", {"CONFUSION": 1e9, "STRENGTHS": (1.0,), "SPREAD": 1e-3}, 1),
    ]
    rows = []
    for held in ("equal", "long tail"):
        for setting, changed, resamples in settings:
            chance, errors, gains, inside = np.random.default_rng(3), [], [], []
            values = base | changed
            values["FEW"] = len(p)  # label shift is not tested here
            with (
                patch.object(likelihood, "CONFUSION", values.pop("CONFUSION")),
                patch.multiple(prior, **values),
            ):
                for _ in range(times):
                    known, rest = parted(labels, counts, held, chance)
                    for shift in (*SHIFTS, *OTHERS):
                        shares = mix(shift, classes, chance)
                        new = sample(labels, rest, shares, INPUTS, chance)
                        truth = np.bincount(labels[new], minlength=classes) / len(new)
                        how = {"held": (p[known], labels[known]), "counts": counts, "resamples": resamples}
                        found = estimate_prior(p[new], **how)
                        errors.append(np.abs(np.array(found.shares) - truth).sum())
                        gains.append(
                            quality(adjusted(p[new], np.array(found.shares)), labels[new])[1]
                            - quality(adjusted(p[new], truth), labels[new])[1]
                        )
                        inside.append(covered(found, labels, rest, shares, INPUTS, classes))
            row = {
                "held out": held,
                "setting": setting,
                "L1": float(np.mean(errors)),
                "NLL lost": float(np.mean(gains)),
            }
            rows.append(row | {"true share in interval": float(np.mean(inside)) if resamples > 1 else "-"})
    return rows
