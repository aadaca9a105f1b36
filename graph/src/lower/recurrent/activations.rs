//! Activation functions of recurrent operators.

use crate::GraphError;
use crate::ir::{Activation, Binary, Instruction};
use crate::lower::call::LoweringCall;
use crate::lower::functions::{activate, number, with};

/// The functions of an operator, in order, with their parameters.
pub(super) struct ActivationList<'a> {
    call: &'a LoweringCall<'a>,
    names: std::vec::IntoIter<String>,
    alphas: std::slice::Iter<'a, f32>,
    betas: std::slice::Iter<'a, f32>,
}

impl<'a> ActivationList<'a> {
    pub(super) fn read(call: &'a LoweringCall<'a>) -> Result<Self, GraphError> {
        let names = match call.node.attribute("activations") {
            Some(attribute) => attribute
                .texts
                .iter()
                .map(|text| String::from_utf8(text.to_vec()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| call.invalid("\"activations\" is not text"))?,
            None => vec![],
        };
        Ok(Self {
            call,
            names: names.into_iter(),
            alphas: call.floats("activation_alpha").unwrap_or_default().iter(),
            betas: call.floats("activation_beta").unwrap_or_default().iter(),
        })
    }

    /// The program of the next function, which replaces the top of the stack; of `default` if the
    /// operator lists none.
    pub(super) fn next(&mut self, default: &str) -> Result<Vec<Instruction>, GraphError> {
        let name = self.names.next().unwrap_or_else(|| default.to_owned());
        let mut alpha = |default: f32| self.alphas.next().copied().unwrap_or(default);
        let mut beta = |default: f32| self.betas.next().copied().unwrap_or(default);
        Ok(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => vec![activate(Activation::Sigmoid)],
            "tanh" => vec![activate(Activation::Tanh)],
            "relu" => vec![activate(Activation::Relu)],
            "softplus" => vec![activate(Activation::Softplus)],
            "leakyrelu" => vec![activate(Activation::LeakyRelu(alpha(0.01)))],
            "hardsigmoid" => {
                vec![activate(Activation::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) })]
            }
            // alpha * x + beta
            "affine" => vec![number(alpha(1.0)), with(Binary::Mul), number(beta(0.0)), with(Binary::Add)],
            // alpha * tanh(beta * x)
            "scaledtanh" => {
                let tanh = activate(Activation::Tanh);
                vec![number(beta(1.0)), with(Binary::Mul), tanh, number(alpha(1.0)), with(Binary::Mul)]
            }
            _ => return Err(self.call.unsupported(format!("the activation {name:?} is"))),
        })
    }
}
