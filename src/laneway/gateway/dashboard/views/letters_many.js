/** One action for many letters, in pieces; it can be stopped, and gone on with after the server was away. */
import { ask, newKey } from "../core/api.js";
import { useRef, useState } from "../ui/parts.js";
import { MANY, pieces } from "./letters_model.js";

/**
 * Deals with letters: `begin(action, { ids })` or `begin(action, { filter })`. Returns `{ work, begin, again, stop, close }`;
 * `work` is null, or `{ action, items, isBusy, error }`. A piece keeps its key until its answer is there: asked again,
 * it is answered the same, and no letter is sent twice.
 */
export function useMany(onDone) {
  const [work, setWork] = useState(null);
  const plan = useRef(null);

  const run = async () => {
    const mine = plan.current;
    setWork({ action: mine.action, items: mine.items, isBusy: true, error: null });
    try {
      while (mine.next && !mine.isStopped) {
        const { body, key } = mine.next;
        const answer = await ask(`/dead-letters/${mine.action}`, { body, key });
        mine.items = [...mine.items, ...answer.items];
        mine.next = mine.following(answer);
        setWork({ action: mine.action, items: mine.items, isBusy: true, error: null });
      }
      setWork({ action: mine.action, items: mine.items, isBusy: false, error: null });
    } catch (error) {
      setWork({ action: mine.action, items: mine.items, isBusy: false, error });
    }
    onDone();
  };

  const begin = (action, { ids, filter }) => {
    const left = ids ? pieces(ids) : [];
    const asked = (body) => ({ body, key: newKey() });
    const following = (answer) => {
      if (ids) return left.length ? asked({ ids: left.shift() }) : null;
      return answer.next ? asked({ filter, limit: MANY, after: answer.next }) : null;
    };
    const next = ids ? following() : asked({ filter, limit: MANY });
    plan.current = { action, items: [], next, following, isStopped: false };
    return run();
  };
  const stop = () => {
    plan.current.isStopped = true;
  };
  return { work, begin, again: run, stop, close: () => setWork(null) };
}
