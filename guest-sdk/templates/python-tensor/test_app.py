"""Run with `PYTHONPATH=sdk python3 -m unittest`; needs no node."""

import unittest

from weir import Tensor, Tensors

import app


class Test(unittest.TestCase):
    def test_values_come_out_between_0_and_1(self):
        answer = app.run(Tensors(x=Tensor([1.0, 2.0, 5.0])))
        self.assertEqual(answer["y"].tolist(), [0.0, 0.25, 1.0])


if __name__ == "__main__":
    unittest.main()
