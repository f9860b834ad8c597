// The dashboard: which page, who looks, and whether what is shown is live.

import { html, render, useEffect, useState, useSignals, Link } from "./view.js";
import { call, connect, disconnect, head, link, who } from "./data.js";
import { Cluster } from "./cluster.js";
import { Queue } from "./queue.js";
import { Job } from "./job.js";
import { Timeline } from "./timeline.js";
import { WhatIf } from "./whatif.js";
import { People } from "./people.js";
import { Decisions } from "./decisions.js";

const PAGES = [["/", "Cluster", Cluster], ["/queue", "Queue", Queue], ["/timeline", "Timeline", Timeline], ["/whatif", "What if", WhatIf], ["/people", "People", People], ["/decisions", "Decisions", Decisions]];

function App() {
  const [path, setPath] = useState(location.pathname);
  const [, setQuery] = useState(location.search);
  const [state, person] = useSignals(link, who);
  useEffect(() => {
    const moved = () => { setPath(location.pathname); setQuery(location.search); };
    const toSearch = (event) => { // a stroke leads to the search, as on many pages
      const isTyping = event.target.closest?.("input, select, textarea, dialog");
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const find = document.getElementById("find");
      if (find) { event.preventDefault(); find.focus(); }
    };
    addEventListener("popstate", moved);
    addEventListener("keydown", toSearch);
    connect();
    return () => { removeEventListener("popstate", moved); removeEventListener("keydown", toSearch); };
  }, []);
  const job = path.match(/^\/jobs\/(.+)$/);
  const page = PAGES.find(([at]) => at === path);
  useEffect(() => { document.title = `${job ? `Job ${decodeURIComponent(job[1])}` : page ? page[1] : "Login"} · Stretto`; }, [path]);
  useEffect(() => { document.querySelector(".bar-top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); }, [path, state]);
  if (state === "login") return html`<${Login} />`;
  return html`
    <a class="skip" href="#main">To the content</a>
    <header class="bar-top">
      <${Link} href="/" class="brand"><img src="/static/icon.svg" alt="" width="22" height="22" /> Stretto<//>
      <nav aria-label="pages">${PAGES.map(([at, name]) => html`<${Link} key=${at} href=${at} aria-current=${at === path ? "page" : undefined}>${name}<//>`)}</nav>
      <${Standing} state=${state} person=${person} />
    </header>
    ${state === "lost" && html`<p class="caution" role="alert">The service does not answer. What is shown may be old; it is tried again.</p>`}
    ${person?.pace > 0 && person.pace !== 1 && html`<p class="quiet pace">Times are of the service's clock: ${person.pace} s there are 1 s here.</p>`}
    <main id="main" tabindex="-1">${job ? html`<${Job} key=${job[1]} id=${decodeURIComponent(job[1])} />` : page ? html`<${page[2]} />` : html`<p class="empty">There is no such page.</p>`}</main>`;
}

function Standing({ state, person }) {
  const [now] = useSignals(head);
  const out = async () => { await call("POST", "/logout"); disconnect(); };
  return html`<p class="standing">
    <span class=${`dot ${state}`} aria-hidden="true"></span><span>${state === "live" ? "live" : state}</span>
    ${now && html`<span class="quiet policy">policy ${now.policy}</span>`}
    ${person && !person.is_open && html`<span>${person.user}${person.role !== person.user && html` <span class="quiet">${person.role}</span>`}</span> <button class="small" onClick=${out}>Log out</button>`}
  </p>`;
}

function Login() {
  const [wrong, setWrong] = useState("");
  const [provider, setProvider] = useState(null);
  useEffect(() => { call("GET", "/login/methods").then((found) => setProvider(found.oidc), () => {}); }, []);
  const there = `/login/oidc?next=${encodeURIComponent(location.pathname + location.search)}`;
  const enter = async (event) => {
    event.preventDefault();
    try {
      await call("POST", "/login", { token: new FormData(event.target).get("token") });
      link.value = "connecting";
      connect();
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<main class="login"><form onSubmit=${enter}>
    <h1><img src="/static/icon.svg" alt="" width="28" height="28" /> Stretto</h1>
    ${provider && html`<p><a class="go" href=${there}>Log in with ${provider}</a></p>`}
    <label for="token">Your token</label>
    <input id="token" name="token" type="password" autocomplete="current-password" required autofocus />
    <button class="go">Log in</button>
    <p role="alert" class="wrong">${wrong}</p>
    <p class="quiet">An administrator makes tokens: <code>stretto token create</code>. The first one is in the file <code>admin-token</code> of the state directory.</p>
  </form></main>`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
