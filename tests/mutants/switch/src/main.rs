//! Writes all mutants of `cargo mutants --list --json` into one program: building each separately
//! would take hours. `switch LIST DROPPED DIRECTORY` rewrites the sources in the directory so that
//! `crate::mutant(n)` decides whether the n-th mutant is active.
//!
//! The copy for a mutant contains no other mutants, so a place grows only by its own. Mutants with
//! numbers in DROPPED are left out: they do not compile. It prints the numbers of those that it
//! cannot write.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprStruct, ExprUnary, parse_quote};

struct Mutant {
    id: u32,
    genre: String,
    replacement: String,
}

struct Switch {
    mutants: HashMap<(usize, usize), Vec<Mutant>>,
    /// Mutants of function bodies, which begin somewhere inside of the braces.
    bodies: Vec<((usize, usize), (usize, usize), Mutant)>,
    written: BTreeSet<u32>,
}

fn place(at: LineColumn) -> (usize, usize) {
    (at.line, at.column + 1)
}

fn begin(span: Span) -> (usize, usize) {
    place(span.start())
}

/// Whether a condition has a `let`, so that it cannot be moved as an expression.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl Switch {
    fn of(&mut self, at: (usize, usize), genre: &str) -> Vec<Mutant> {
        let Some(here) = self.mutants.get_mut(&at) else {
            return Vec::new();
        };
        let (taken, left) = std::mem::take(here)
            .into_iter()
            .partition(|mutant| mutant.genre == genre);
        *here = left;
        taken
    }

    fn choose(&mut self, mutants: Vec<(u32, Expr)>, otherwise: Expr) -> Expr {
        mutants
            .into_iter()
            .rev()
            .fold(otherwise, |otherwise, (id, mutated)| {
                self.written.insert(id);
                parse_quote!((if crate::mutant(#id) { #mutated } else { #otherwise }))
            })
    }
}

impl VisitMut for Switch {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let mutants: Vec<(u32, Expr)> = match &*expr {
            Expr::Binary(binary @ ExprBinary { op, .. }) if !has_let(expr) => {
                let mutants = self.of(begin(op.span()), "BinaryOperator").into_iter();
                let mutated = |mutant: Mutant| {
                    let op: BinOp = syn::parse_str(&mutant.replacement).expect("an operator");
                    (
                        mutant.id,
                        Expr::Binary(ExprBinary {
                            op,
                            ..binary.clone()
                        }),
                    )
                };
                mutants.map(mutated).collect()
            }
            Expr::Unary(ExprUnary { op, expr, .. }) => {
                let mutants = self.of(begin(op.span()), "UnaryOperator").into_iter();
                mutants
                    .map(|mutant| (mutant.id, (**expr).clone()))
                    .collect()
            }
            _ => Vec::new(),
        };
        visit_mut::visit_expr_mut(self, expr);
        if !mutants.is_empty() {
            *expr = self.choose(mutants, expr.clone());
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let deleted = self.of(begin(arm.span()), "MatchArm");
        let guards = match &arm.guard {
            Some((_, guard)) if !has_let(guard) => self.of(begin(guard.span()), "MatchArmGuard"),
            _ => Vec::new(),
        };
        visit_mut::visit_arm_mut(self, arm);
        if let Some((_, guard)) = &mut arm.guard
            && !guards.is_empty()
        {
            let value =
                |mutant: &Mutant| syn::parse_str(&mutant.replacement).expect("true or false");
            let guards = guards
                .iter()
                .map(|mutant| (mutant.id, value(mutant)))
                .collect();
            **guard = self.choose(guards, (**guard).clone());
        }
        for Mutant { id, .. } in deleted {
            self.written.insert(id);
            let guard: Expr = match arm.guard.take() {
                Some((_, guard)) => parse_quote!(!crate::mutant(#id) && #guard),
                None => parse_quote!(!crate::mutant(#id)),
            };
            arm.guard = Some((Default::default(), Box::new(guard)));
        }
    }

    fn visit_expr_struct_mut(&mut self, it: &mut ExprStruct) {
        let base = it.rest.clone();
        // Evaluated again; where that moves something, the mutant does not compile.
        for field in &mut it.fields {
            for Mutant { id, .. } in self.of(begin(field.span()), "StructField") {
                let (Some(base), member, value) = (&base, &field.member, &field.expr) else {
                    continue;
                };
                self.written.insert(id);
                let chosen: Expr =
                    parse_quote!(if crate::mutant(#id) { (#base).#member } else { #value });
                field.expr = chosen;
                field.colon_token.get_or_insert_default();
            }
        }
        visit_mut::visit_expr_struct_mut(self, it);
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_impl_item_fn_mut(&mut self, it: &mut syn::ImplItemFn) {
        visit_mut::visit_impl_item_fn_mut(self, it);
        self.body(&mut it.block);
    }

    fn visit_item_fn_mut(&mut self, it: &mut syn::ItemFn) {
        visit_mut::visit_item_fn_mut(self, it);
        self.body(&mut it.block);
    }
}

impl Switch {
    fn body(&mut self, block: &mut Block) {
        let from = place(block.brace_token.span.open().start());
        let to = place(block.brace_token.span.close().end());
        let (here, left) = std::mem::take(&mut self.bodies)
            .into_iter()
            .partition(|(begin, end, _)| from <= *begin && *end <= to);
        self.bodies = left;
        for (
            ..,
            Mutant {
                id, replacement, ..
            },
        ) in here
        {
            self.written.insert(id);
            let value: Expr = syn::parse_str(&replacement).expect("a value");
            block
                .stmts
                .insert(0, parse_quote!(if crate::mutant(#id) { return #value; }));
        }
    }
}

fn number(value: &serde_json::Value) -> usize {
    usize::try_from(value.as_u64().expect("a number")).expect("a small one")
}

fn main() {
    let [list, dropped, directory] =
        [1, 2, 3].map(|n| std::env::args().nth(n).expect("LIST DROPPED DIRECTORY"));
    let dropped = std::fs::read_to_string(dropped).unwrap_or_default();
    let dropped: BTreeSet<u32> = dropped
        .split_whitespace()
        .map(|id| id.parse().expect("a number"))
        .collect();
    let list = std::fs::read_to_string(list).expect("the list can be read");
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).expect("JSON");
    let mut files: BTreeMap<String, Switch> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (id, mutant) in (1..).zip(&list) {
        all.insert(id);
        let text = |key: &str| mutant[key].as_str().expect("text").to_owned();
        let at = |end: &str| {
            (
                number(&mutant["span"][end]["line"]),
                number(&mutant["span"][end]["column"]),
            )
        };
        let file = files.entry(text("file")).or_insert_with(|| Switch {
            mutants: HashMap::new(),
            bodies: Vec::new(),
            written: BTreeSet::new(),
        });
        if dropped.contains(&id) {
            continue;
        }
        let (genre, replacement) = (text("genre"), text("replacement"));
        let it = Mutant {
            id,
            genre,
            replacement,
        };
        if it.genre == "FnValue" {
            file.bodies.push((at("start"), at("end"), it));
        } else {
            file.mutants.entry(at("start")).or_default().push(it);
        }
    }
    let mut written = BTreeSet::new();
    for (name, mut switch) in files {
        let path = Path::new(&directory).join(&name);
        let source = std::fs::read_to_string(&path).expect("a source can be read");
        let mut file = syn::parse_file(&source).expect("Rust");
        switch.visit_file_mut(&mut file);
        written.append(&mut switch.written);
        std::fs::write(&path, prettyplease::unparse(&file)).expect("it can be written");
    }
    for id in all.difference(&written).filter(|id| !dropped.contains(id)) {
        println!("{id}");
    }
}
