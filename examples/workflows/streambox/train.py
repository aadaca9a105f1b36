"""Train the small models of StreamBox's three applications and write them, and what they get right, here.

    python3 -m venv .venv
    .venv/bin/pip install --require-hashes -r ../../../functions/classify-digits/model/requirements.txt
    .venv/bin/python train.py

Stand-ins of a few kilobytes: the applications have the shape of the paper's, and their models read digits, pictograms of 8 x 8 pixels and a vocabulary
of 24 words, all of them made up here but for the digits, which ship with scikit-learn. Takes a few seconds.
"""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from onnxruntime import InferenceSession
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor

HERE = Path(__file__).resolve().parent
DIGITS = HERE / "../../../functions/classify-digits/model/digits.onnx"
# Those of the model that reads digits: what it has not been trained on, these have not either.
SEED = 20
HELD_OUT = 0.25
SIDE = 8
MOST = 16
POSTS = 1_500

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
# Pictograms, eight rows each.
VEHICLES = {
    "car": "........ ........ ..####.. .######. ######## ######## .##..##. ........",
    "bus": "######## #.#.#.## #.#.#.## ######## ######## ######## .#....#. ........",
    "lorry": "........ #####... #####... #####.## ######## ######## .#..#.#. ........",
}
PEOPLE = {
    "adult": "...##... ...##... .######. ...##... ...##... ..#..#.. ..#..#.. ..#..#..",
    "child": "........ ........ ........ ...##... ..####.. ...##... ..#..#.. ........",
    "cyclist": "...##... ...##... ..###... ...##.#. .##..##. #..##..# #..##..# .##..##.",
}
TOPICS = {
    "sport": "..####.. .#.##.#. #..##..# ######## #..##..# #..##..# .#.##.#. ..####..",
    "food": "...#.... ...#.... .######. .#....#. ######## #.#.#.## ######## ........",
    "travel": "...#.... ...##... #..###.. ######## ######## #..###.. ...##... ...#....",
}
# Four words of each topic in our language, then the same in the other, and one that fills up.
WORDS, FOREIGN, PADDING, LENGTH = 12, 12, 24, 6


def main():
    rng = np.random.default_rng(SEED)
    data = load_digits()
    digits = train_test_split(
        data.images, data.target, test_size=HELD_OUT, random_state=SEED, stratify=data.target
    )
    metrics, requests = {}, {}
    for application in [image, traffic, social]:
        models, application_metrics, application_requests = application(rng, digits)
        metrics[application.__name__] = application_metrics
        requests |= application_requests
        for name, model in models.items():
            checker.check_model(model, full_check=True)
            path = HERE / f"{application.__name__}-{name}.onnx"
            path.write_bytes(model.SerializeToString(deterministic=True))
    for name, (expected, inputs) in requests.items():
        request = {"id": expected, "inputs": [tensor(key, value) for key, value in inputs.items()]}
        (HERE / f"{name}.json").write_text(json.dumps(request) + "\n")
    (HERE / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    print(json.dumps(metrics, indent=2))


def image(rng, digits):
    """Digits as a poor camera sees them."""
    train_x, test_x, _, test_y = digits
    poor = lambda images: np.clip(np.round(images + rng.normal(0, 5, images.shape)), 0, MOST)
    # Each digit several times, each time as noisy.
    clear = np.concatenate([train_x] * 6)
    flat = lambda images: images.reshape(len(images), -1) / MOST
    enhancer = MLPRegressor(hidden_layer_sizes=(64,), max_iter=60, random_state=SEED).fit(flat(poor(clear)), flat(clear))
    nodes, constants, last = dense(list(zip(enhancer.coefs_, enhancer.intercepts_)), "flat")
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]), *nodes]
    nodes += [
        helper.make_node("Clip", [last, "none", "all"], ["clipped"]),
        helper.make_node("Reshape", ["clipped", "shape"], ["clearer"]),
    ]
    constants += [constant("none", 0, np.float32), constant("all", 1, np.float32)]
    constants.append(constant("shape", [-1, 1, SIDE, SIDE], np.int64))
    enhance = model(nodes, {"image": (FLOAT, IMAGE)}, {"clearer": (FLOAT, IMAGE)}, constants)

    seen = poor(test_x)
    given = (seen / MOST).astype(np.float32).reshape(-1, 1, SIDE, SIDE)
    reads = lambda images: run(DIGITS.read_bytes(), image=images)[0].argmax(1)
    (clearer,) = run(enhance, image=given)
    before, after = reads(given), reads(clearer)
    helped = np.flatnonzero((before != test_y) & (after == test_y))[0]
    metrics = {"as_it_is": share(before == test_y), "made_clearer": share(after == test_y)}
    request = (f"a {test_y[helped]}", {"pixels": seen[helped].astype(np.uint8)[None]})
    return {"enhance": enhance}, metrics | {"held_out": len(test_y)}, {"image": request}


def traffic(rng, digits):
    """Scenes: a vehicle and its plate, a person, or an empty road."""
    train_x, test_x, train_y, test_y = digits

    def scenes(images, labels, count):
        names = [*VEHICLES, *PEOPLE, "nothing"]
        what, at = rng.integers(len(names), size=count), rng.integers(len(labels), size=count)
        scene = np.zeros((count, SIDE, 2 * SIDE))
        for i, name in enumerate(np.array(names)[what]):
            if name != "nothing":
                scene[i, :, :SIDE] = pictogram(rng, (VEHICLES | PEOPLE)[name])
            if name in VEHICLES:
                scene[i, :, SIDE:] = images[at[i]]
        # Plates are lit, and what is around them is not.
        scene[:, :, :SIDE] += rng.normal(0, 2, (count, SIDE, SIDE))
        return np.clip(np.round(scene), 0, MOST).astype(np.uint8), what, labels[at]

    x, what, _ = scenes(train_x, train_y, 4_000)
    flat = lambda scene: scene.reshape(len(scene), -1) / MOST
    is_vehicle = lambda what: what < 3
    is_person = lambda what: (what >= 3) & (what < 6)
    train = lambda x, y: MLPClassifier((16,), alpha=1e-2, max_iter=300, random_state=SEED).fit(flat(x), y)
    found = train(x, np.where(is_vehicle(what), 0, np.where(is_person(what), 1, 2)))
    kinds = train(x[is_vehicle(what)], what[is_vehicle(what)])
    people = train(x[is_person(what)], what[is_person(what)] - 3)
    models = {
        "detect": detector(found),
        "vehicle": scene_classifier(kinds, "kind", len(VEHICLES)),
        "person": scene_classifier(people, "who", len(PEOPLE)),
        "crop": crop(),
    }

    x, what, plates = scenes(test_x, test_y, 1_000)
    vehicle, person, *_ = run(models["detect"], scene=x)
    (kind,), (who,) = run(models["vehicle"], scene=x), run(models["person"], scene=x)
    (image,) = run(models["crop"], scene=x)
    (plate,) = run(DIGITS.read_bytes(), image=image)
    vehicles, persons = is_vehicle(what), is_person(what)
    metrics = {
        "detected": share((vehicle[:, 0] > 0.5) == vehicles) * 0.5 + share((person[:, 0] > 0.5) == persons) * 0.5,
        "vehicles": share(kind.argmax(1)[vehicles] == what[vehicles]),
        "plates": share(plate.argmax(1)[vehicles] == plates[vehicles]),
        "people": share(who.argmax(1)[persons] == what[persons] - 3),
        "held_out": len(x),
    }
    metrics["detected"] = round(metrics["detected"], 4)
    names = [*VEHICLES, *PEOPLE]
    right = (vehicle[:, 0] > 0.9) & vehicles & (kind.argmax(1) == what) & (plate.argmax(1) == plates)
    one = np.flatnonzero(right)[0]
    other = np.flatnonzero((person[:, 0] > 0.9) & persons & (who.argmax(1) == what - 3))[0]
    return models, metrics, {
        "traffic-vehicle": (f"a {names[what[one]]}, {plates[one]}", {"scene": x[one : one + 1]}),
        "traffic-person": (f"a {names[what[other]]}", {"scene": x[other : other + 1]}),
    }


def social(rng, _digits):
    """Posts: words of one topic mostly, in one language, and a picture."""

    def posts(count):
        topic, is_foreign = rng.integers(len(TOPICS), size=count), rng.integers(2, size=count)
        words = np.full((count, LENGTH), PADDING)
        for i in range(count):
            length = rng.integers(2, LENGTH + 1)
            # One word in three is about something else.
            of = np.where(rng.random(length) < 1 / 3, rng.integers(len(TOPICS), size=length), topic[i])
            words[i, :length] = of * 4 + rng.integers(4, size=length) + FOREIGN * is_foreign[i]
        pictures = np.stack([pictogram(rng, list(TOPICS.values())[i]) for i in topic])
        pictures = np.clip(np.round(pictures + rng.normal(0, 6, pictures.shape)), 0, MOST)
        return words, is_foreign, pictures.astype(np.uint8), topic

    words, is_foreign, pictures, topic = posts(POSTS)
    ours = np.where((words >= FOREIGN) & (words < PADDING), words - FOREIGN, words)
    text = LogisticRegression(max_iter=500).fit(bag(ours), topic)
    picture = LogisticRegression(max_iter=500).fit(pictures.reshape(len(topic), -1) / MOST, topic)
    models = {
        "language": language(),
        "translate": translate(),
        "text": text_classifier(text),
        "picture": picture_classifier(picture),
    }
    both = lambda words, pictures: (run(models["text"], words=words)[0], run(models["picture"], pixels=pictures)[0])
    judge = LogisticRegression(max_iter=500).fit(np.concatenate(both(ours, pictures), axis=1), topic)
    models["judge"] = judge_of(judge)

    words, is_foreign, pictures, topic = posts(POSTS)
    (told,) = run(models["language"], words=words)
    (translated,) = run(models["translate"], words=words)
    ours = np.where(told > 0.5, translated, words)
    by_text, by_picture = both(ours, pictures)
    (by_both,) = run(models["judge"], text=by_text, picture=by_picture)
    metrics = {
        "language": share((told[:, 0] > 0.5) == is_foreign),
        "text": share(by_text.argmax(1) == topic),
        "text_untranslated": share(both(words, pictures)[0].argmax(1) == topic),
        "picture": share(by_picture.argmax(1) == topic),
        "both": share(by_both.argmax(1) == topic),
        "held_out": len(topic),
    }
    right = by_both.argmax(1) == topic
    requests = {}
    for name, is_wanted in [("social-foreign", is_foreign == 1), ("social-ours", is_foreign == 0)]:
        at = np.flatnonzero(right & is_wanted)[0]
        given = {"words": words[at : at + 1], "pixels": pictures[at : at + 1]}
        requests[name] = (list(TOPICS)[topic[at]], given)
    return models, metrics, requests


def detector(classifier):
    """scene -> how sure it is of a vehicle and of a person, and what is to be said of those that are not there."""
    nodes, constants, last = dense(list(zip(classifier.coefs_, classifier.intercepts_)), "flat")
    nodes = [*flatten("scene"), *nodes, helper.make_node("Softmax", [last], ["sure"], axis=-1)]
    nodes.append(helper.make_node("Split", ["sure", "parts"], ["vehicle", "person", "neither"], axis=1))
    constants += [*scale(), constant("parts", [1, 1, 1], np.int64)]
    gives = {"vehicle": (FLOAT, ["N", 1]), "person": (FLOAT, ["N", 1])}
    for name, width in [("no_vehicle", len(VEHICLES)), ("no_plate", 10), ("no_person", len(PEOPLE))]:
        nodes.append(helper.make_node("MatMul", ["neither", f"{name}_zeroes"], [name]))
        constants.append(constant(f"{name}_zeroes", np.zeros((1, width)), np.float32))
        gives[name] = (FLOAT, ["N", width])
    return model(nodes, {"scene": (UINT8, SCENE)}, gives, constants)


def scene_classifier(classifier, output, classes):
    nodes, constants, last = dense(list(zip(classifier.coefs_, classifier.intercepts_)), "flat")
    nodes = [*flatten("scene"), *nodes, helper.make_node("Softmax", [last], [output], axis=-1)]
    return model(nodes, {"scene": (UINT8, SCENE)}, {output: (FLOAT, ["N", classes])}, constants + scale())


def crop():
    """scene -> its right half, in the form that the model of digits takes."""
    nodes = [
        helper.make_node("Slice", ["scene", "begin", "end", "across"], ["half"]),
        helper.make_node("Cast", ["half"], ["floats"], to=FLOAT),
        helper.make_node("Div", ["floats", "most"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "channel"], ["image"]),
    ]
    numbers = {"begin": SIDE, "end": 2 * SIDE, "across": 2, "channel": 1}
    constants = [constant(name, [number], np.int64) for name, number in numbers.items()]
    constants.append(constant("most", MOST, np.float32))
    return model(nodes, {"scene": (UINT8, SCENE)}, {"image": (FLOAT, IMAGE)}, constants)


def language():
    """words -> the share of them that are of the other language."""
    nodes = [
        helper.make_node("GreaterOrEqual", ["words", "first"], ["above"]),
        helper.make_node("Less", ["words", "padding"], ["is_word"]),
        helper.make_node("And", ["above", "is_word"], ["is_foreign"]),
        helper.make_node("Cast", ["is_foreign"], ["foreign_words"], to=FLOAT),
        helper.make_node("Cast", ["is_word"], ["all_words"], to=FLOAT),
        helper.make_node("ReduceSum", ["foreign_words", "across"], ["foreign_count"], keepdims=1),
        helper.make_node("ReduceSum", ["all_words", "across"], ["count"], keepdims=1),
        helper.make_node("Max", ["count", "one"], ["divisor"]),
        helper.make_node("Div", ["foreign_count", "divisor"], ["foreign"]),
    ]
    constants = [constant("first", FOREIGN, np.int64), constant("padding", PADDING, np.int64)]
    constants += [constant("across", [1], np.int64), constant("one", 1, np.float32)]
    return model(nodes, {"words": (INT64, POST)}, {"foreign": (FLOAT, ["N", 1])}, constants)


def translate():
    """words -> the same in our language."""
    lexicon = [*range(WORDS), *range(WORDS), PADDING]
    nodes = [helper.make_node("Gather", ["lexicon", "words"], ["ours"])]
    return model(nodes, {"words": (INT64, POST)}, {"ours": (INT64, POST)}, [constant("lexicon", lexicon, np.int64)])


def text_classifier(classifier):
    """words -> topics: a bag of words, and a dense layer."""
    nodes = [
        helper.make_node("OneHot", ["words", "depth", "off_on"], ["each"], axis=-1),
        helper.make_node("ReduceSum", ["each", "across"], ["flat"], keepdims=0),
    ]
    more, constants, last = dense([(classifier.coef_.T, classifier.intercept_)], "flat")
    nodes += [*more, helper.make_node("Softmax", [last], ["topics"], axis=-1)]
    constants += [constant("depth", PADDING + 1, np.int64), constant("off_on", [0, 1], np.float32)]
    constants.append(constant("across", [1], np.int64))
    return model(nodes, {"words": (INT64, POST)}, {"topics": (FLOAT, ["N", len(TOPICS)])}, constants)


def picture_classifier(classifier):
    nodes, constants, last = dense([(classifier.coef_.T, classifier.intercept_)], "flat")
    nodes = [*flatten("pixels"), *nodes, helper.make_node("Softmax", [last], ["topics"], axis=-1)]
    given, gives = {"pixels": (UINT8, ["N", SIDE, SIDE])}, {"topics": (FLOAT, ["N", len(TOPICS)])}
    return model(nodes, given, gives, constants + scale())


def judge_of(classifier):
    """What the words say and what the picture says -> what both say."""
    nodes, constants, last = dense([(classifier.coef_.T, classifier.intercept_)], "both")
    nodes = [helper.make_node("Concat", ["text", "picture"], ["both"], axis=1), *nodes]
    nodes.append(helper.make_node("Softmax", [last], ["topics"], axis=-1))
    row = (FLOAT, ["N", len(TOPICS)])
    return model(nodes, {"text": row, "picture": row}, {"topics": row}, constants)


IMAGE = ["N", 1, SIDE, SIDE]
SCENE = ["N", SIDE, 2 * SIDE]
POST = ["N", LENGTH]


def dense(layers, last):
    """Dense layers with ReLU between them, on what `last` names: nodes, constants, and the name of what they give."""
    nodes, constants = [], []
    for i, (weights, bias) in enumerate(layers):
        constants += [constant(f"weights{i}", weights, np.float32), constant(f"bias{i}", bias, np.float32)]
        nodes.append(helper.make_node("Gemm", [last, f"weights{i}", f"bias{i}"], [f"dense{i}"]))
        last = f"dense{i}"
        if i + 1 < len(layers):
            nodes.append(helper.make_node("Relu", [last], [f"relu{i}"]))
            last = f"relu{i}"
    return nodes, constants, last


def flatten(name):
    """Pixels from 0 to 16 -> rows of numbers from 0 to 1."""
    return [
        helper.make_node("Cast", [name], ["floats"], to=FLOAT),
        helper.make_node("Div", ["floats", "most"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["flat"]),
    ]


def scale():
    return [constant("most", MOST, np.float32)]


def constant(name, value, datatype):
    return numpy_helper.from_array(np.array(value, datatype), name)


def model(nodes, given, gives, constants):
    infos = lambda ports: [helper.make_tensor_value_info(name, *port) for name, port in ports.items()]
    graph = helper.make_graph(nodes, "model", infos(given), infos(gives), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model, **inputs):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return InferenceSession(data).run(None, inputs)


def pictogram(rng, rows):
    """A pictogram, somewhat brighter or darker, and up to a pixel away from its place."""
    pixels = np.array([[c == "#" for c in row] for row in rows.split()], float)
    pixels = np.roll(pixels, tuple(rng.integers(-1, 2, size=2)), (0, 1))
    return pixels * rng.uniform(0.6, 1) * MOST


def bag(words):
    return np.eye(PADDING + 1)[words].sum(1)


def share(is_right):
    return round(float(np.mean(is_right)), 4)


def tensor(name, value):
    datatype = {"uint8": "UINT8", "int64": "INT64"}[str(value.dtype)]
    return {"name": name, "datatype": datatype, "shape": list(value.shape), "data": value.flatten().tolist()}


if __name__ == "__main__":
    main()
