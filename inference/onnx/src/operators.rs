//! Operators that models may use, by domain and name. ONNX Runtime has operators beyond the
//! standard that check their inputs less, and that end the process for some of them.

use crate::onnx::{Attribute, Graph, Model, Node};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use weir_inference::UploadRefusal;

/// Domains whose operators are all allowed. The standard's own domain can also be written as an
/// empty string.
const DOMAINS: [&str; 3] = ["", "ai.onnx", "ai.onnx.ml"];

/// Domains in which ONNX Runtime has operators: a model's function may not pass for one of them.
const RESERVED_DOMAINS: [&str; 4] = ["ai.onnx", "com.microsoft", "com.ms", "org.pytorch"];

const MICROSOFT: &str = "com.microsoft";
/// Operators of ONNX Runtime that its optimiser substitutes for standard operators on the CPU.
/// Models that were exported after optimisation contain them. The comments name the transformer of
/// ONNX Runtime 1.31 that makes each operator.
const MICROSOFT_OPERATORS: &[&str] = &[
    "Attention",               // AttentionFusion
    "BiasGelu",                // BiasGeluFusion
    "BiasSoftmax",             // BiasSoftmaxFusion
    "DequantizeLinear",        // WeightBiasQuantization, QDQPropagation
    "DynamicQuantizeMatMul",   // DynamicQuantizeMatMulFusion
    "EmbedLayerNormalization", // EmbedLayerNormFusion
    "FastGelu",                // FastGeluFusion
    "FusedConv",               // ConvActivationFusion, ConvAddActivationFusion
    "FusedGemm",               // GemmActivationFusion
    "FusedMatMul",             // MatmulTransposeFusion, MatMulScaleFusion
    "Gelu",                    // GeluFusion
    "MatMulIntegerToFloat",    // MatMulIntegerToFloatFusion
    "MatMulNBits",             // DQMatMulNBitsFusion
    "MultiHeadAttention",      // AttentionFusion
    "NhwcMaxPool",             // NhwcTransformer
    "QGemm",                   // QDQSelectorActionTransformer, as all QLinear operators
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearConv", // NhwcTransformer
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearReduceMean",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QuantizeLinear",                   // WeightBiasQuantization, QDQPropagation
    "QuickGelu",                        // QuickGeluFusion
    "SkipLayerNormalization",           // SkipLayerNormFusion, BiasSkipLayerNormFusion
    "SkipSimplifiedLayerNormalization", // SkipLayerNormFusion
];

const ANY: &str = "*";

/// Pattern of operators: `DOMAIN.OPERATOR`, `DOMAIN.*`, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperatorPattern(String);

/// The text is no [`OperatorPattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no operator: write DOMAIN.OPERATOR, DOMAIN.* for all of a domain, or *")]
pub struct OperatorPatternError(String);

impl TryFrom<String> for OperatorPattern {
    type Error = OperatorPatternError;

    fn try_from(text: String) -> Result<Self, OperatorPatternError> {
        let is_word = |word: &str| {
            !word.is_empty()
                && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        };
        let is_valid = text == ANY
            || text
                .rsplit_once('.')
                .is_some_and(|(domain, name)| is_word(domain) && (name == ANY || is_word(name)));
        if is_valid { Ok(Self(text)) } else { Err(OperatorPatternError(text)) }
    }
}

impl From<OperatorPattern> for String {
    fn from(pattern: OperatorPattern) -> Self {
        pattern.0
    }
}

impl OperatorPattern {
    fn covers(&self, domain: &str, operator: &str) -> bool {
        self.0 == ANY
            || self
                .0
                .rsplit_once('.')
                .is_some_and(|(own_domain, name)| own_domain == domain && (name == ANY || name == operator))
    }
}

/// Checks the operators of all graphs and functions of a model. `further` are patterns of operators
/// that are allowed in addition to those of the standard and the optimiser.
pub(crate) fn check_operators(model: &Model, further: &[OperatorPattern]) -> Result<(), UploadRefusal> {
    let own = model.functions.iter().filter(|function| !is_reserved(&function.domain));
    let own = own.map(|function| (function.domain.as_str(), function.name.as_str())).collect();
    let check = Check { own, further };
    let training = model.training.iter().flat_map(|part| part.initialisation.iter().chain(&part.algorithm));
    model.graph.iter().chain(training).try_for_each(|graph| check.graph(graph))?;
    for function in &model.functions {
        check.nodes(&function.nodes)?;
        let defaults = function.attributes.iter().flat_map(Attribute::all_graphs);
        defaults.into_iter().try_for_each(|graph| check.graph(graph))?;
    }
    Ok(())
}

fn is_reserved(domain: &str) -> bool {
    domain.is_empty()
        || RESERVED_DOMAINS.iter().any(|reserved| {
            domain.strip_prefix(reserved).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
}

struct Check<'a> {
    /// The model's own functions, by domain and name.
    own: HashSet<(&'a str, &'a str)>,
    further: &'a [OperatorPattern],
}

impl Check<'_> {
    fn graph(&self, graph: &Graph) -> Result<(), UploadRefusal> {
        self.nodes(&graph.nodes)
    }

    fn nodes(&self, nodes: &[Node]) -> Result<(), UploadRefusal> {
        for node in nodes {
            if !self.allows(&node.domain, &node.operator) {
                return Err(UploadRefusal::OperatorNotAllowed {
                    operator: node.operator.clone(),
                    domain: node.domain.clone(),
                });
            }
            node.graphs().try_for_each(|graph| self.graph(graph))?;
        }
        Ok(())
    }

    fn allows(&self, domain: &str, operator: &str) -> bool {
        DOMAINS.contains(&domain)
            || domain == MICROSOFT && MICROSOFT_OPERATORS.contains(&operator)
            || self.own.contains(&(domain, operator))
            || self.further.iter().any(|pattern| pattern.covers(domain, operator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Function;

    fn node(domain: &str, operator: &str) -> Node {
        Node { domain: domain.to_owned(), operator: operator.to_owned(), ..Node::default() }
    }

    fn graph(nodes: Vec<Node>) -> Graph {
        Graph { nodes, ..Graph::default() }
    }

    fn model(nodes: Vec<Node>) -> Model {
        Model { graph: Some(graph(nodes)), ..Model::default() }
    }

    fn refused(model: &Model, further: &[&str]) -> Option<String> {
        let further: Vec<_> =
            further.iter().map(|pattern| OperatorPattern::try_from((*pattern).to_owned()).unwrap()).collect();
        match check_operators(model, &further) {
            Ok(()) => None,
            Err(UploadRefusal::OperatorNotAllowed { operator, domain }) => {
                Some(format!("{domain}.{operator}"))
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn standard_operators_and_those_of_the_optimiser_are_allowed() {
        for (domain, operator) in [
            ("", "Conv"),
            ("ai.onnx", "Div"),
            ("ai.onnx.ml", "TreeEnsemble"),
            ("com.microsoft", "FusedConv"),
            ("com.microsoft", "QLinearAdd"),
        ] {
            assert_eq!(refused(&model(vec![node(domain, operator)]), &[]), None);
        }
        for (domain, operator) in [
            ("com.microsoft", "Tokenizer"),
            ("com.microsoft", "NhwcConv"),
            ("com.microsoft.nchwc", "Conv"),
            ("ai.onnx.preview.training", "Adam"),
            ("org.pytorch.aten", "ATen"),
            ("example", "Conv"),
        ] {
            let expected = Some(format!("{domain}.{operator}"));
            assert_eq!(refused(&model(vec![node("", "Add"), node(domain, operator)]), &[]), expected);
        }
    }

    #[test]
    fn nested_graphs_functions_and_training_are_searched() {
        let bad = || node("com.microsoft", "Tokenizer");
        let nested = |inner: Graph| Node {
            attributes: vec![Attribute { graphs: vec![inner], ..Attribute::default() }],
            ..node("", "If")
        };
        let deep = nested(graph(vec![nested(graph(vec![bad()]))]));
        let function =
            |nodes| Function { nodes, name: "f".into(), domain: "own".into(), ..Function::default() };
        let with_function =
            |nodes| Model { functions: vec![function(nodes)], ..model(vec![node("own", "f")]) };
        assert!(refused(&model(vec![deep]), &[]).is_some());
        assert!(refused(&with_function(vec![bad()]), &[]).is_some());
        assert!(refused(&with_function(vec![nested(graph(vec![bad()]))]), &[]).is_some());
        assert_eq!(refused(&with_function(vec![node("", "Add")]), &[]), None);
        let training = crate::onnx::Training { algorithm: Some(graph(vec![bad()])), ..Default::default() };
        assert!(refused(&Model { training: vec![training], ..model(vec![]) }, &[]).is_some());
    }

    #[test]
    fn function_of_a_model_cannot_pass_for_an_operator_of_the_runtime() {
        let function =
            Function { name: "Tokenizer".into(), domain: "com.microsoft".into(), ..Function::default() };
        let model = Model { functions: vec![function], ..model(vec![node("com.microsoft", "Tokenizer")]) };
        assert!(refused(&model, &[]).is_some());
    }

    #[test]
    fn patterns_allow_further_operators() {
        let model = |domain, operator| model(vec![node(domain, operator)]);
        let further = ["com.microsoft.NhwcConv", "my.domain.*"];
        assert_eq!(refused(&model("com.microsoft", "NhwcConv"), &further), None);
        assert_eq!(refused(&model("my.domain", "Any"), &further), None);
        assert!(refused(&model("com.microsoft", "Tokenizer"), &further).is_some());
        assert!(refused(&model("my.domain.other", "Any"), &further).is_some());
        assert_eq!(refused(&model("any", "Any"), &["*"]), None);
        for valid in ["com.microsoft.NhwcConv", "my.domain.*", "a.b", "*"] {
            assert!(OperatorPattern::try_from(valid.to_owned()).is_ok(), "{valid}");
        }
        for invalid in ["", "NhwcConv", ".NhwcConv", "com.microsoft.", "com.*.Conv", "*.Conv", "a b.c"] {
            assert!(OperatorPattern::try_from(invalid.to_owned()).is_err(), "{invalid}");
        }
    }
}
