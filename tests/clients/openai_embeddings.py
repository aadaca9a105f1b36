"""Tests with OpenAI's client, unmodified, on the node at WEIR_URL with the function `embed-text`."""

import os
import unittest

import numpy as np
import openai

URL = os.environ["WEIR_URL"]
TEXTS = ["A cat sits on the mat.", "A kitten rests on a rug.", "Shares fell in early trading."]


class Embeddings(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)

    def tearDown(self):
        self.client.close()

    def vectors(self, texts, **options):
        answer = self.client.embeddings.create(model="embed-text", input=texts, **options)
        self.assertEqual([item.index for item in answer.data], list(range(len(answer.data))))
        self.assertGreater(answer.usage.total_tokens, 2 * len(answer.data))
        self.assertEqual(answer.model, "embed-text")
        return np.array([item.embedding for item in answer.data])

    def test_close_meanings_are_close(self):
        cat, kitten, shares = self.vectors(TEXTS)
        self.assertEqual(cat.shape, (384,))
        np.testing.assert_allclose(np.linalg.norm(cat), 1, atol=1e-4)
        self.assertGreater(cat @ kitten, cat @ shares + 0.2)

    def test_both_formats_have_the_same_numbers(self):
        # The client requests base64 by default.
        np.testing.assert_allclose(self.vectors(TEXTS), self.vectors(TEXTS, encoding_format="float"), atol=1e-6)
        np.testing.assert_allclose(self.vectors(TEXTS[0])[0], self.vectors(TEXTS)[0], atol=1e-4)

    def test_more_texts_than_one_batch_has(self):
        many = self.vectors([f"Number {n}." for n in range(70)])
        self.assertEqual(many.shape, (70, 384))

    def test_functions_are_listed_as_models(self):
        listed = {model.id: model for model in self.client.models.list()}
        self.assertEqual(listed["embed-text"].owned_by, "default")
        self.assertGreater(listed["embed-text"].created, 1_700_000_000)
        self.assertEqual(self.client.models.retrieve("embed-text"), listed["embed-text"])
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("nobody")

    def test_errors_are_the_clients_own(self):
        with self.assertRaisesRegex(openai.NotFoundError, "there is no function"):
            self.client.embeddings.create(model="nobody", input="x")
        with self.assertRaisesRegex(openai.BadRequestError, "token ids"):
            self.client.embeddings.create(model="embed-text", input=[1, 2, 3])
        with self.assertRaisesRegex(openai.BadRequestError, "384"):
            self.client.embeddings.create(model="embed-text", input="x", dimensions=16)


if __name__ == "__main__":
    unittest.main()
