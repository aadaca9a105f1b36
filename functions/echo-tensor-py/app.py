"""Returns its input tensors unchanged, under the same names."""

from wit_world.exports import Stage as StageExport
from wit_world.imports.tensors import Tensor


class Stage(StageExport):
    def run(self, inputs: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        return inputs
