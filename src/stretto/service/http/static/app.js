// The dashboard: which page, who looks, and whether what is shown is live.

import { html, render, useEffect, useState, useSignals, Guard, Link } from "./view.js";
import { call, connect, disconnect, farewell, head, link, old, refusal, who } from "./data.js";
import { moment } from "./format.js";
import { Cluster } from "./cluster.js";
import { Queue } from "./queue.js";
import { Job } from "./job.js";
import { Timeline } from "./timeline.js";
import { WhatIf } from "./whatif.js";
import { People } from "./people.js";
import { Decisions } from "./decisions.js";

const PAGES = [["/", "Cluster", Cluster], ["/queue", "Queue", Queue], ["/timeline", "Timeline", Timeline], ["/whatif", "What if", WhatIf], ["/people", "People", People], ["/decisions", "Decisions", Decisions]];
const OFTEN = 2; // that something could not be renewed before it is said

/** The id in the address of a job, also where somebody has cut that in the middle of a character. */
function jobIn(path) {
  const given = path.match(/^\/jobs\/(.+)$/)?.[1] ?? "";
  try {
    return decodeURIComponent(given);
  } catch {
    return given;
  }
}

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
    if (location.pathname === "/login") { // the cluster leads there where a login is due
      history.replaceState(null, "", "/");
      moved();
    }
    connect();
    return () => { removeEventListener("popstate", moved); removeEventListener("keydown", toSearch); };
  }, []);
  const job = jobIn(path);
  const page = PAGES.find(([at]) => at === path);
  useEffect(() => { document.title = `${state === "login" ? "Login" : job ? `Job ${job}` : page ? page[1] : "Not found"} · Stretto`; }, [path, state]);
  useEffect(() => { document.querySelector(".bar-top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); }, [path, state]);
  if (state === "login") return html`<${Login} />`;
  return html`
    <a class="skip" href="#main">To the content</a>
    <header class="bar-top">
      <${Link} href="/" class="brand"><img src="/static/icon.svg" alt="" width="22" height="22" /> Stretto<//>
      <nav aria-label="pages">${PAGES.map(([at, name]) => html`<${Link} key=${at} href=${at} aria-current=${at === path ? "page" : undefined}>${name}<//>`)}</nav>
      <${Standing} state=${state} person=${person} />
    </header>
    <${Caution} state=${state} />
    ${person?.pace > 0 && person.pace !== 1 && html`<p class="quiet pace">Times are of the service's clock: ${person.pace} s there are 1 s here.</p>`}
    <main id="main" tabindex="-1"><${Guard} key=${path}>${job ? html`<${Job} key=${job} id=${job} />` : page ? html`<${page[2]} />` : html`<p class="empty">There is no page ${path} here.</p>`}<//></main>`;
}

/** Whether what is shown is as things are, and since when not. */
function Caution({ state }) {
  const [now, why, late] = useSignals(head, refusal, old);
  if (state === "lost") return html`<p class="caution" role="alert">${why ? `The service sends no news: ${why}.` : "The service does not answer."}${now ? ` What is shown is of ${moment(now.heard_ms / 1000)}.` : ""} It is tried again.</p>`;
  const [first] = state === "live" ? [...late.values()].filter((each) => each.times >= OFTEN).sort((a, b) => a.since_ms - b.since_ms) : [];
  return first ? html`<p class="caution" role="alert">A part of this page is not renewed since ${moment(first.since_ms / 1000)}: ${first.words}. It is tried again.</p>` : null;
}

function Standing({ state, person }) {
  const [now] = useSignals(head);
  const [wrong, setWrong] = useState("");
  const out = async () => {
    try {
      await call("POST", "/logout");
      disconnect();
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<p class="standing">
    <span class=${`dot ${state}`} aria-hidden="true"></span><span>${state === "live" ? "live" : state}</span>
    ${now && html`<span class="quiet policy">policy ${now.policy}</span>`}
    ${person && !person.is_open && html`<span>${person.user}${person.role !== person.user && html` <span class="quiet">${person.role}</span>`}</span> <button class="small" onClick=${out}>Log out</button> ${wrong && html`<span class="wrong" role="alert">${wrong}</span>`}`}
  </p>`;
}

function Login() {
  const [wrong, setWrong] = useState("");
  const [provider, setProvider] = useState(null);
  const [bye] = useSignals(farewell);
  useEffect(() => { call("GET", "/login/methods").then((found) => setProvider(found.oidc), () => {}); }, []);
  const there = `/login/oidc?next=${encodeURIComponent(location.pathname + location.search)}`;
  const enter = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      await call("POST", "/login", { token: new FormData(event.target).get("token") });
      farewell.value = "";
      link.value = "connecting";
      connect();
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<main class="login"><form onSubmit=${enter}>
    <h1><img src="/static/icon.svg" alt="" width="28" height="28" /> Stretto</h1>
    ${bye && html`<p role="status">${bye}</p>`}
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
