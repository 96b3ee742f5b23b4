//! Reads a contract's fields, one by one and in the order of the grammar.

use std::collections::BTreeMap;

use super::{Acquire, Command, Contract, Kind, Loop, MAX_ROLES, MAX_STEPS, Question, RoleRef, Step, is_inner_path};
use crate::domain::Invalid;
use crate::domain::field::{Field, Fields};
use crate::domain::ids::is_id;
use crate::domain::json::Json;
use crate::domain::matching::{Requirement, Role};

/// The most words of a command, names in `env` or `pass_env`, options, answerers, artifacts.
const MAX_WORDS: usize = 1024;

pub(super) fn contract(body: &Json) -> Result<Contract, Invalid> {
    let top = Field::root(body).object()?;
    let text = |name| top.opt(name).map(|field| field.word().map(str::to_owned)).transpose();
    let name = text("name")?;
    let run_id = top.opt("run_id").map(|field| field.run_id()).transpose()?;
    let work = text("work")?;
    let distinct_nodes = top.opt("distinct_nodes").map(|field| field.boolean()).transpose()?;
    let priority = top.opt("priority").map_or(Ok(0), |field| field.integer(-10..=10))?;
    let queue_timeout_ms = top.opt("queue_timeout_seconds").map(|field| field.seconds_ms()).transpose()?;
    let limit_ms = top.opt("limit_seconds").map(|field| field.seconds_ms()).transpose()?;
    let attended = top.opt("attended").map_or(Ok(false), |field| field.boolean())?;
    let roles: Result<_, _> = top.req("requires")?.list(1..=MAX_ROLES)?.iter().map(required).collect();
    let mut requires = Requirement { roles: roles?, distinct_nodes };
    let mut steps = steps(&top.req("steps")?)?;
    top.finish()?;
    mark_agents(&mut requires, &mut steps);
    Ok(Contract { name, run_id, work, requires, steps, priority, queue_timeout_ms, limit_ms, attended })
}

/// A role that any `run` step uses must be matched, all of it, to nodes with an agent.
fn mark_agents(requires: &mut Requirement, steps: &mut [Step]) {
    let worked: Vec<String> = steps
        .iter()
        .filter_map(|step| match &step.kind {
            Kind::Run(command) => Some(command.uses.role.clone()),
            _ => None,
        })
        .collect();
    let wanted = steps.iter_mut().filter_map(|step| match &mut step.kind {
        Kind::Acquire(acquire) => Some(&mut acquire.want),
        _ => None,
    });
    for role in requires.roles.iter_mut().chain(wanted) {
        role.agent = worked.contains(&role.name);
    }
}

fn required(field: &Field) -> Result<Role, Invalid> {
    let fields = field.object()?;
    let count = fields.opt("count").map_or(Ok(1), |count| count.integer(1..=32))?;
    let mut role = role(&fields)?;
    role.count = usize::try_from(count).expect("1 to 32");
    fields.finish()?;
    Ok(role)
}

fn role(fields: &Fields) -> Result<Role, Invalid> {
    let name = fields.req("as")?;
    let text = name.id()?;
    if text.contains('.') {
        return Err(name.invalid("a role's name has no dot: `dut.1` means the second node of `dut`"));
    }
    let capability = fields.req("capability")?.word()?.to_owned();
    let attrs = fields.opt("attrs").map_or(Ok(BTreeMap::new()), |attrs| attributes(&attrs))?;
    Ok(Role { name: text.to_owned(), capability, attrs, count: 1, agent: false })
}

/// Reads `attrs`, of a requirement or of an advert: names to values, which are compared as canonical text.
pub fn attributes(field: &Field) -> Result<BTreeMap<String, String>, Invalid> {
    field.entries()?.into_iter().map(|(key, value)| Ok((key.to_owned(), value.scalar(true)?))).collect()
}

fn steps(field: &Field) -> Result<Vec<Step>, Invalid> {
    let fields = field.list(1..=MAX_STEPS)?;
    // Ids first: an acquire names steps that come after it.
    let mut index = BTreeMap::new();
    for (at, step) in fields.iter().enumerate() {
        let id = step.object()?.req("id")?;
        if index.insert(id.id()?, at).is_some() {
            return Err(id.invalid("another step has this id"));
        }
    }
    fields.iter().enumerate().map(|(at, field)| step(field, at, &index)).collect()
}

fn step(field: &Field, at: usize, index: &BTreeMap<&str, usize>) -> Result<Step, Invalid> {
    let fields = field.object()?;
    let id = fields.req("id")?.id()?.to_owned();
    let kinds = [fields.opt("run"), fields.opt("ask"), fields.opt("acquire"), fields.opt("hold")];
    if kinds.iter().flatten().count() != 1 {
        return Err(fields.invalid("expected exactly one of run, ask, acquire, hold"));
    }
    let [run, ask, acquire, hold] = kinds;
    let kind = if let Some(run) = run {
        Kind::Run(command(&fields, &run)?)
    } else if let Some(ask) = ask {
        Kind::Ask(question(&ask)?)
    } else if let Some(acquire) = &acquire {
        Kind::Acquire(acquisition(acquire, index)?)
    } else {
        let hold = hold.expect("one of the four is there").object()?;
        let timeout_ms = hold.opt("timeout_seconds").map(|field| field.seconds_ms()).transpose()?;
        hold.finish()?;
        Kind::Hold { timeout_ms }
    };
    let needs = match fields.opt("needs") {
        None => at.checked_sub(1).into_iter().collect(),
        Some(needs) => self::needs(&needs, at, index)?,
    };
    let (mut release, mut allow_failure, mut again) = (Vec::new(), false, None);
    if acquire.is_none() {
        if let Some(field) = fields.opt("release") {
            release = field.list(0..=MAX_WORDS)?.iter().map(role_ref).collect::<Result<_, _>>()?;
        }
        allow_failure = fields.opt("allow_failure").map_or(Ok(false), |field| field.boolean())?;
        again = fields.opt("loop").map(|field| going_back(&field, at, index)).transpose()?;
    }
    fields.finish()?;
    Ok(Step { id, kind, needs, release, allow_failure, again })
}

fn needs(field: &Field, at: usize, index: &BTreeMap<&str, usize>) -> Result<Vec<usize>, Invalid> {
    let mut needs = Vec::new();
    for need in field.list(0..=MAX_STEPS)? {
        match index.get(need.id()?) {
            Some(&before) if before < at => {
                if needs.contains(&before) {
                    return Err(need.invalid("named twice"));
                }
                needs.push(before);
            }
            Some(_) => return Err(need.invalid("only an earlier step may be needed")),
            None => return Err(need.invalid("no step has this id")),
        }
    }
    Ok(needs)
}

fn command(fields: &Fields, run: &Field) -> Result<Command, Invalid> {
    let argv: Vec<String> =
        run.list(1..=MAX_WORDS)?.iter().map(|word| word.long_text().map(str::to_owned)).collect::<Result<_, _>>()?;
    if argv[0].is_empty() {
        return Err(run.invalid("expected a program to run as the first word"));
    }
    let uses = fields.opt("uses").ok_or_else(|| fields.invalid_at("uses", "missing: which role runs this command"))?;
    let uses = role_ref(&uses)?;
    let env = fields.opt("env").map_or(Ok(BTreeMap::new()), |env| {
        env.entries()?
            .into_iter()
            .map(|(key, value)| variable(key, &value).map(|key| (key, value)))
            .map(|pair| {
                let (key, value) = pair?;
                Ok((key, value.scalar(false)?))
            })
            .collect::<Result<BTreeMap<_, _>, Invalid>>()
    })?;
    let mut pass_env = Vec::new();
    if let Some(field) = fields.opt("pass_env") {
        for name in field.list(0..=MAX_WORDS)? {
            pass_env.push(variable(name.word()?, &name)?);
        }
    }
    let timeout_ms = fields.opt("timeout_seconds").map(|field| field.seconds_ms()).transpose()?;
    let mut artifacts = Vec::new();
    if let Some(field) = fields.opt("artifacts") {
        for path in field.list(0..=MAX_WORDS)? {
            let text = path.word()?;
            if !is_inner_path(text) {
                return Err(path.invalid("expected a relative path with no `.`, `..` or empty part"));
            }
            artifacts.push(text.to_owned());
        }
    }
    Ok(Command { uses, argv, env, pass_env, timeout_ms, artifacts })
}

fn variable(name: &str, field: &Field) -> Result<String, Invalid> {
    if name.is_empty() || name.contains('=') {
        return Err(field.invalid("the name of a variable is not empty and has no `=`"));
    }
    Ok(name.to_owned())
}

fn question(field: &Field) -> Result<Question, Invalid> {
    let fields = field.object()?;
    let words = |name| -> Result<Vec<String>, Invalid> {
        let mut words: Vec<String> = Vec::new();
        let Some(field) = fields.opt(name) else { return Ok(words) };
        for word in field.list(0..=MAX_WORDS)? {
            let text = word.word()?;
            if words.iter().any(|known| known == text) {
                return Err(word.invalid("named twice"));
            }
            words.push(text.to_owned());
        }
        Ok(words)
    };
    let prompt = fields.req("prompt")?;
    let question = Question {
        prompt: match prompt.long_text()? {
            "" => return Err(prompt.invalid("expected a question")),
            text => text.to_owned(),
        },
        options: words("options")?,
        accept: words("accept")?,
        answerers: words("answerers")?,
        timeout_ms: fields.opt("timeout_seconds").map(|field| field.seconds_ms()).transpose()?,
    };
    if let Some(at) = question.accept.iter().position(|answer| !question.options.contains(answer)) {
        return Err(fields.invalid_at("accept", format!("`{}` is not among the options", question.accept[at])));
    }
    fields.finish()?;
    Ok(question)
}

fn acquisition(field: &Field, index: &BTreeMap<&str, usize>) -> Result<Acquire, Invalid> {
    let fields = field.object()?;
    let want_field = fields.req("want")?;
    let want_fields = want_field.object()?;
    let want = role(&want_fields)?;
    want_fields.finish()?;
    let named = |name| -> Result<usize, Invalid> {
        let field = fields.req(name)?;
        index.get(field.id()?).copied().ok_or_else(|| field.invalid("no step has this id"))
    };
    let acquire = Acquire { want, acquired: named("acquired")?, unavailable: named("unavailable")? };
    if acquire.acquired == acquire.unavailable {
        return Err(fields.invalid_at("unavailable", "expected another step than `acquired`"));
    }
    fields.finish()?;
    Ok(acquire)
}

fn going_back(field: &Field, at: usize, index: &BTreeMap<&str, usize>) -> Result<Loop, Invalid> {
    let fields = field.object()?;
    let back_to = fields.req("back_to")?;
    let back_to = match index.get(back_to.id()?) {
        Some(&start) if start <= at => start,
        Some(_) => return Err(back_to.invalid("a loop goes back to this step or an earlier one")),
        None => return Err(back_to.invalid("no step has this id")),
    };
    let max = fields.req("max")?.integer(2..=100)?;
    fields.finish()?;
    Ok(Loop { back_to, max })
}

fn role_ref(field: &Field) -> Result<RoleRef, Invalid> {
    let text = field.word()?;
    let (role, index) = match text.split_once('.') {
        None => (text, None),
        Some((role, index)) => {
            let plain = !index.is_empty() && index.len() <= 2 && index.bytes().all(|b| b.is_ascii_digit());
            let index = index.parse().ok().filter(|_| plain && (index == "0" || !index.starts_with('0')));
            (role, Some(index.ok_or_else(|| field.invalid("expected a role, or a role and a number: `dut.1`"))?))
        }
    };
    if !is_id(role) {
        return Err(field.invalid("expected the name of a role"));
    }
    Ok(RoleRef { role: role.to_owned(), index })
}
