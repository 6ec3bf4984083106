//! Proxy for https from the environment: refused if it cannot be used, and named in each error, without the
//! name and password in its URL.

use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use reqwest::NoProxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use url::Url;

use super::account::{AccountError, malformed};
use super::credential::Env;
use super::server::{addresses, connect};

// In the order of curl and the SDKs; the first one that is set counts.
const VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

pub(super) struct Proxy {
    url: Url,
    variable: &'static str,
    exceptions: String,
    matcher: Matcher,
}

impl Proxy {
    /// Returns the proxy that the environment names, if requests to `endpoint` take it.
    pub(super) fn find(env: &Env<'_>, endpoint: &Url) -> Result<Option<Proxy>, AccountError> {
        let set = VARIABLES
            .into_iter()
            .find_map(|name| Some((name, env(name)?)));
        let Some((variable, value)) = set else {
            return Ok(None);
        };
        let exceptions = EXCEPTIONS.into_iter().find_map(env).unwrap_or_default();
        let matcher = |proxy: &str| {
            let builder = Matcher::builder().https(proxy.to_owned());
            builder.no(exceptions.clone()).build()
        };
        // Any proxy will do here: only the exceptions decide.
        if intercept(&matcher("http://proxy"), endpoint).is_none() {
            return Ok(None);
        }
        let with_scheme = match value.contains("://") {
            true => value,
            false => format!("http://{value}"),
        };
        let url = Url::parse(&with_scheme).ok().filter(|url| {
            let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
            matches!(url.scheme(), "http" | "https") && is_bare && url.fragment().is_none()
        });
        let url = url.ok_or_else(|| {
            malformed(
                variable,
                "is not the URL of a proxy for https: set http://HOST:PORT (in a password write # as %23, / as \
                 %2F, ? as %3F; SOCKS proxies cannot be used), or name the host in NO_PROXY",
            )
        })?;
        Ok(Some(Proxy {
            matcher: matcher(url.as_str()),
            url,
            variable,
            exceptions,
        }))
    }

    pub(super) fn setting(&self) -> reqwest::Result<reqwest::Proxy> {
        let proxy = reqwest::Proxy::https(self.url.clone())?;
        Ok(proxy.no_proxy(NoProxy::from_string(&self.exceptions)))
    }

    pub(super) fn takes(&self, url: &Url) -> bool {
        intercept(&self.matcher, url).is_some()
    }

    /// Names the proxy and its variable, with the answer of a refusal, which the HTTP library does not report.
    pub(super) async fn named(&self, url: &Url, cause: &str) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.port();
        let refuses = ["unsuccessful", "authorization required"];
        let status = match refuses.iter().any(|words| cause.contains(words)) {
            true => self.status(url).await,
            false => None,
        };
        let status = status.map(|line| format!(", which answers '{line}'"));
        format!(
            "through the proxy {host}:{port} ({}){}",
            self.variable,
            status.unwrap_or_default()
        )
    }

    fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(80)
    }

    async fn status(&self, url: &Url) -> Option<String> {
        // Only the library can speak TLS to a proxy.
        let proxy = self
            .url
            .host_str()
            .filter(|_| self.url.scheme() == "http")?;
        let target = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
        let mut stream = connect(&addresses(proxy, self.port()).await.ok()?)
            .await
            .ok()?;
        let found = intercept(&self.matcher, url)?;
        let login = found.basic_auth().and_then(|login| login.to_str().ok());
        let login = login.map(|login| format!("Proxy-Authorization: {login}\r\n"));
        let login = login.unwrap_or_default();
        let ask = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n");
        stream.write_all(ask.as_bytes()).await.ok()?;
        let mut answer = [0; 256];
        let read = stream.read(&mut answer).await.ok()?;
        let text = String::from_utf8_lossy(&answer[..read]);
        let line = text.lines().next()?.split_once(' ')?.1;
        Some(line.to_owned())
    }
}

fn intercept(matcher: &Matcher, url: &Url) -> Option<Intercept> {
    matcher.intercept(&url.as_str().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Option<Proxy>, String> {
        let env = |name: &str| {
            let found = variables.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let endpoint = Url::parse("https://contoso.blob.core.windows.net").unwrap();
        Proxy::find(&env, &endpoint).map_err(|error| error.to_string())
    }

    #[test]
    fn unusable_proxy_is_refused_by_variable_without_its_secret() {
        for value in [
            "http:://proxy:3128",
            "socks5h://proxy:1080",
            "http://user:hush#word@proxy:3128",
            "http://user:hush?word@proxy:3128",
            "http://user:hush/word@proxy:3128",
            "http://",
            "ftp://proxy",
        ] {
            let why = find(&[("https_proxy", value)]).map(drop).expect_err(value);
            assert!(
                why.starts_with("https_proxy is not the URL of a proxy"),
                "{why}"
            );
            assert!(!why.contains("hush"), "{why}");
            assert!(find(&[("HTTPS_PROXY", value), ("NO_PROXY", ".windows.net")]).is_ok());
        }
    }

    #[test]
    fn proxy_is_found_in_the_order_of_curl() {
        for (variables, url) in [
            (
                &[("HTTPS_PROXY", "http://proxy:3128")][..],
                "http://proxy:3128/",
            ),
            (&[("HTTPS_PROXY", "proxy:3128")], "http://proxy:3128/"),
            (&[("ALL_PROXY", "https://u:p@proxy")], "https://u:p@proxy/"),
            (
                &[("ALL_PROXY", "http://all"), ("https_proxy", "http://https")],
                "http://https/",
            ),
        ] {
            let proxy = find(variables).unwrap().expect("a proxy");
            assert_eq!(proxy.url.as_str(), url);
        }
        for none in [
            &[][..],
            &[("HTTP_PROXY", "http://proxy")],
            &[("HTTPS_PROXY", "http://p"), ("no_proxy", "*")],
        ] {
            assert!(find(none).unwrap().is_none());
        }
    }
}
