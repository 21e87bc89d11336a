"""Structures of a posterior, one file each, by the name users give."""

from lapkernels.laplace.structures.blocks import BlockDiagonal
from lapkernels.laplace.structures.diag import Diag
from lapkernels.laplace.structures.full import FullMatrix
from lapkernels.laplace.structures.function_space import FunctionSpace
from lapkernels.laplace.structures.kron import Kron, KronCorrected
from lapkernels.laplace.structures.low_rank import LargestEigenvalues
from lapkernels.laplace.structures.structure import Packed, Structure, Subject
from lapkernels.laplace.structures.subnetwork import Subnetwork

STRUCTURES: dict[str, Structure] = {
    "diag": Diag(),
    "kron": Kron(),
    "kron_corrected": KronCorrected(),
    "blocks": BlockDiagonal(),
    "full": FullMatrix(),
    "low_rank": LargestEigenvalues(),
    "function_space": FunctionSpace(),
    "subnetwork": Subnetwork(),
}

__all__ = ["STRUCTURES", "Packed", "Structure", "Subject"]
